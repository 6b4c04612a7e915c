"""Checkpoints: slot images in segment files, and a manifest that lists the images of one checkpoint.

`format.checkpoint_io` writes images, publishes manifests and finds the newest; `format.manifest` combines the reports
of all servers; `format.storage` is a folder or an fsspec URL. `checkpointer` is for programs without tables.
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
