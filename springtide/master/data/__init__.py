"""Leases, partitions and data workers. On the path of a sample, this package lies between worker/link and
data/ledger."""
