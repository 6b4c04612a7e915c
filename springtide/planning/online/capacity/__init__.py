"""Pure. Training capacity in samples per second, by number of workers."""
