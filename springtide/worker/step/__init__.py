"""One training step: pull rows, push gradients, acknowledge. On the path of a sample, this package comes before
embedding/lookup."""
