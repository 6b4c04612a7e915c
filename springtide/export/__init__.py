"""Exports a checkpoint's tables and dense tensors as files for serving, in common formats.

Reading order: `slot_rows` reads a model from a checkpoint. `row_index` and `delta` find the changes since an earlier
export. `row_spool` buffers rows on disk, and `table_file` and `export_folder` write and read files. `exporter` makes
one export, and `continuous` makes one after another. `loader` puts an export into a plain PyTorch model.
"""

import importlib
from typing import Any

_HOME = {"into": "springtide.export.loader", "read": "springtide.export.loader"}

__all__ = ["into", "read"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.export' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
