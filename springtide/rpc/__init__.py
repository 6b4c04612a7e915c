"""The control plane: authenticated msgpack frames over asyncio streams. This package has no job logic and never
unpickles."""
