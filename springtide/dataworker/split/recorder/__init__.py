"""Records the torch calls of a running `forward()`, and what user code can read."""
