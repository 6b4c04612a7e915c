"""A trained model outside its job: tables as keys and rows, dense tensors by name.

In: `export.export_folder` fills it from an export. Next: `export.delta` applies changes, `export.loader` fills PyTorch
models.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.domain.model.tables import TableOutline

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ExportedTable:
    """The rows of one table, sorted by key. A missing key was never trained."""

    outline: TableOutline
    dtype: str
    """Data type on the servers; `rows` are always float32."""
    keys: Keys
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """All tables and dense tensors of an export."""

    job: str
    number: int
    """Number of the checkpoint."""
    samples: int
    """Number of samples trained by then."""
    tables: dict[str, ExportedTable] = field(default_factory=dict)
    dense: dict[str, Any] = field(default_factory=dict)
    """Torch tensors by their name in the model's state_dict()."""
    left_out: tuple[str, ...] = ()
    """Names in the model's state that no server holds as trained."""


def in_order(outline: TableOutline, dtype: str, keys: Keys, rows: Rows) -> ExportedTable:
    order = np.argsort(keys, kind="stable")
    return ExportedTable(outline, dtype, np.ascontiguousarray(keys[order]), np.ascontiguousarray(rows[order]))
