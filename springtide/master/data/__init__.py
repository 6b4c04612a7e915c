"""Leases, partitions and data workers. Sample walk: between worker/link and data/ledger."""
