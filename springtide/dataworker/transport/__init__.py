"""Sends batches between processes: layout, codec, sockets, shared memory."""
