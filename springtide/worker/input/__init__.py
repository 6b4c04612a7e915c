"""Batches for the loop: leases, read-ahead, iterable data sets. Sample walk: after job.py."""
