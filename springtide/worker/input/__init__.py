"""Batches for the loop: leases, read-ahead, iterable data sets. Read it after job.py."""
