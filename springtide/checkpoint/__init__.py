"""Checkpoints: slot images in segment files, and a manifest that says which of them together are the job.

A walk: `segments` writes what a server copies, `cover` puts the servers' words together, `writer` publishes the
`manifest`, `reader` finds the newest one that is whole. Where they lie is a `places.Place`: a folder or an fsspec URL.

For a program without tables: `checkpointer`, and beside it the `state_` rooms.
"""

import importlib
from typing import Any

_HOME = {
    name: "springtide.checkpoint.checkpointer.checkpointer" for name in ("Checkpointer", "Loaded", "Outcome", "Save")
}

__all__ = ["Checkpointer", "Loaded", "Outcome", "Save"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the saver process needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.checkpoint' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
