"""Cache of rows in the worker, and allocation of samples to the workers' caches."""
