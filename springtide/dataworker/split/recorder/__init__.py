"""Record the torch calls of a running `forward()`, and the state that user code can read."""
