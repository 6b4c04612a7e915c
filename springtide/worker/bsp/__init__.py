"""Groups of bsp workers: connection, all-reduce and group state."""
