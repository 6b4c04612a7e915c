"""Batches for the loop: leases, read-ahead, iterable data sets. On the path of a sample, this package comes after
job.py."""
