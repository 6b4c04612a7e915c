"""What changed between two exports of a model, and how to lay it over the older one.

In: two `export.model.Table`s with sorted keys. Out: rows that are new or differ in any bit, and keys that went.
"""

from dataclasses import dataclass

import numpy as np

from springtide.export.model import Keys, Table


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """Lay `changed` over the older table, then take `removed` away."""

    changed: Table
    removed: Keys


def between(old: Table, new: Table) -> TableDelta:
    """From `old` to `new`."""
    at = _positions(old.keys, new.keys)
    known = at >= 0
    differs = np.ones(len(new.keys), dtype=bool)
    before = old.rows[at[known]].view(np.uint32)  # bits: a NaN is equal to itself, and -0.0 is not 0.0
    differs[known] = (before != new.rows[known].view(np.uint32)).any(axis=1)
    changed = Table(new.outline, new.dtype, new.keys[differs], new.rows[differs])
    return TableDelta(changed, old.keys[_positions(new.keys, old.keys) < 0])


def apply(old: Table, delta: TableDelta) -> Table:
    """The newer table."""
    stays = (_positions(delta.changed.keys, old.keys) < 0) & (_positions(delta.removed, old.keys) < 0)
    keys = np.concatenate([old.keys[stays], delta.changed.keys])
    rows = np.concatenate([old.rows[stays], delta.changed.rows])
    order = np.argsort(keys, kind="stable")
    return Table(delta.changed.outline, delta.changed.dtype, keys[order], rows[order])


def _positions(among: Keys, keys: Keys) -> Keys:
    """Where each key is among sorted ones; -1: nowhere."""
    if len(among) == 0:
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    return np.where(among[at] == keys, at, -1)
