"""Exports a checkpoint's tables and dense tensors as files for serving, in common formats.

`exporter` makes exports, `table_files` writes the rows and finds changes, `export_folder` reads exports into models.
"""

from springtide import lazy_names

_HOME = {"into": "springtide.export.export_folder", "read": "springtide.export.export_folder"}

__all__ = ["into", "read"]

__getattr__ = lazy_names.importer(__name__, _HOME)
