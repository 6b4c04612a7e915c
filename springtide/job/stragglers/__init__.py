"""Pure. Slow workers: detection, smaller leases, backups."""
