"""Leases, partitions and data workers. A sample's path leads here between worker/link and data/ledger."""
