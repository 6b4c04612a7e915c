"""Batches between processes: layout, codec, sockets, shared memory."""
