"""The control plane: authenticated msgpack frames over asyncio streams. Knows no business; never unpickles."""
