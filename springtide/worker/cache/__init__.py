"""The worker's row cache, and the allocation of samples to it."""
