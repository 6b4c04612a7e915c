"""Authenticated msgpack frames over asyncio streams."""
