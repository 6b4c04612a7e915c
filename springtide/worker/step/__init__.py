"""One training step: pull rows, push gradients, acknowledge. Sample walk: before embedding/lookup."""
