"""Pure. Samples, leases, streams, data workers."""
