"""The only folder on the import path of benchmark processes that run beside peers."""
