"""Parameter servers: slot migration, recovery, guards, bsp groups."""
