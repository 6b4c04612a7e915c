"""Connection of the worker to the master: leases, progress, timings."""
