"""Pure. Input and output of planners."""
