"""Choose the cut of a forward(), build the split, and report it."""
