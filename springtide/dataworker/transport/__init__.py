"""How a batch crosses between processes: layout, codec, sockets, shared memory."""
