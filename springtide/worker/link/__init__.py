"""The worker's connection to the master: leases, progress, timings."""
