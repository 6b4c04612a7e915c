"""Servers: migration, loss, memory guards, bsp groups."""
