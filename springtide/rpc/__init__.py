"""The control plane: authenticated msgpack frames over asyncio streams. It has no job logic and never unpickles."""
