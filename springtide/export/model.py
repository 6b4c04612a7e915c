"""A trained model outside of its job: tables as keys and rows, dense tensors by name.

In: `export.export_folder` fills it from an export. Next: `export.delta` lays one over another, `export.loader`.
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
    """The rows of one table, in the order of their keys. A key that is not there was never trained."""

    outline: TableOutline
    dtype: str
    """As the servers keep it; `rows` are float32 in any case."""
    keys: Keys
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """All of it."""

    job: str
    number: int
    """Of the checkpoint it comes from."""
    samples: int
    """Trained by then."""
    tables: dict[str, ExportedTable] = field(default_factory=dict)
    dense: dict[str, Any] = field(default_factory=dict)
    """Torch tensors by the name they have in the model's state_dict()."""
    left_out: tuple[str, ...] = ()
    """Names of the model's state that no server holds as trained."""


def in_order(outline: TableOutline, dtype: str, keys: Keys, rows: Rows) -> ExportedTable:
    order = np.argsort(keys, kind="stable")
    return ExportedTable(outline, dtype, np.ascontiguousarray(keys[order]), np.ascontiguousarray(rows[order]))
