"""bsp groups: connect, all-reduce, group state."""
