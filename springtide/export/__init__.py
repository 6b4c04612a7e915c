"""Exports for serving: a checkpoint's tables and dense tensors as files that anything can read.

A walk: `slot_rows` takes a model out of a checkpoint, `row_index` and `delta` tell what changed since an earlier one,
`spool` keeps rows on their way, `packing` and `files` write and read them, `making` does all that; `following` again
and again; `load` puts an export into a plain PyTorch model.
"""

import importlib
from typing import Any

_HOME = {"into": "springtide.export.loader", "read": "springtide.export.loader"}

__all__ = ["into", "read"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.export' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
