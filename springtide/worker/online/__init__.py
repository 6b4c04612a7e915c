"""Stream training in a worker: read leased partitions, exchange batches with peers, hand batches to the loop."""
