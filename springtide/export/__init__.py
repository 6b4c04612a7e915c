"""Exports a checkpoint's tables and dense tensors as files for serving, in common formats.

`exporter` makes exports, `table_files` writes the rows and finds changes, `export_folder` reads exports into models.
"""

import importlib
from typing import Any

_HOME = {"into": "springtide.export.export_folder", "read": "springtide.export.export_folder"}

__all__ = ["into", "read"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.export' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
