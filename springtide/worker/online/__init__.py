"""Trains from a stream in a worker: reads leased partitions, exchanges batches with peers, and passes batches to the
loop."""
