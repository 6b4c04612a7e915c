"""Computes the difference between two exports of a model, and applies it to the older export.

In: keys and checksums of the rows of one slot, old and new (`export.row_index`). Out: a mask of new or changed rows,
and the removed keys. In reverse: the newer table from the older one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.export.model import ExportedTable, Keys
from springtide.export.row_index import Sums


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """A change of a table: apply `changed` to the older table, then delete `removed`."""

    changed: ExportedTable
    removed: Keys


def between(old: Keys, old_sums: Sums, new: Keys, new_sums: Sums) -> tuple[npt.NDArray[np.bool_], Keys]:
    """Return a mask of rows that are new or changed, and the removed keys. Keys are sorted on both sides."""
    at = _positions(old, new)
    known = at >= 0
    differs = np.ones(len(new), dtype=bool)
    differs[known] = old_sums[at[known]] != new_sums[known]
    return differs, old[_positions(new, old) < 0]


def apply(old: ExportedTable, delta: TableDelta) -> ExportedTable:
    stays = (_positions(delta.changed.keys, old.keys) < 0) & (_positions(delta.removed, old.keys) < 0)
    keys = np.concatenate([old.keys[stays], delta.changed.keys])
    rows = np.concatenate([old.rows[stays], delta.changed.rows])
    order = np.argsort(keys, kind="stable")
    return ExportedTable(delta.changed.outline, delta.changed.dtype, keys[order], rows[order])


def _positions(among: Keys, keys: Keys) -> Keys:
    if len(among) == 0:
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    return np.where(among[at] == keys, at, -1)
