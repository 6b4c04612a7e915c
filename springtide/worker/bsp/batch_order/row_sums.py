"""Pure. Sum gradients of table rows in the order of their units.

In: the row gradients of each unit's backward, from unit_gradients.py. Out: one gradient per row. Next:
unit_gradients.py pushes it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tables = NDArray[np.uint16]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]


class RowGradients(NamedTuple):
    """Gradients of rows in one flat array. All rows of a table have the same length."""

    tables: Tables
    keys: Numbers
    places: Numbers
    """Position in the batch of the unit behind each gradient."""
    dims: Numbers
    """Number of floats of each gradient."""
    grads: Floats

    def where(self, wanted: NDArray[np.bool_]) -> "RowGradients":
        here = np.repeat(wanted, self.dims)
        return RowGradients(
            self.tables[wanted], self.keys[wanted], self.places[wanted], self.dims[wanted], self.grads[here]
        )

    def to_bytes(self) -> bytes:
        return len(self.keys).to_bytes(8, "little") + b"".join(column.tobytes() for column in self)

    @staticmethod
    def from_bytes(parcel: bytes) -> "RowGradients":
        rows = int.from_bytes(parcel[:8], "little")
        keys, places, dims = (np.frombuffer(parcel, np.int64, rows, 8 + 2 * rows + 8 * rows * nth) for nth in range(3))
        grads = np.frombuffer(parcel, np.float32, -1, 8 + 26 * rows)
        return RowGradients(np.frombuffer(parcel, np.uint16, rows, 8), keys, places, dims, grads)


NONE = RowGradients(
    np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
)


def together(parts: Sequence[RowGradients]) -> RowGradients:
    return RowGradients(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else NONE


class Distinct(NamedTuple):
    """Grouping of equal (table, key) pairs."""

    number: Numbers
    """Index of each pair among the sorted distinct pairs."""
    first: Numbers
    """Position of the first occurrence of each distinct pair."""


def distinct(tables: Tables, keys: Numbers) -> Distinct:
    order = np.lexsort((keys, tables))  # stable, so the first of equal pairs stays first
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (np.diff(keys[order]) != 0) | (np.diff(tables[order]) != 0)
    number = np.empty(len(keys), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return Distinct(number, order[new])


def summed(rows: RowGradients) -> RowGradients:
    """Return one gradient per row: the sum over its units in order of their positions, sorted by row.

    A sum starts with its first gradient unchanged, as on a server; nothing is added to a zero.
    """
    number, first = distinct(rows.tables, rows.keys)
    order = np.lexsort((rows.places, number))
    number = number[order]
    turn = np.arange(len(order)) - np.searchsorted(number, number)  # index of the gradient within its row
    dims = rows.dims[first]
    ends, begins = np.cumsum(rows.dims), np.cumsum(dims) - dims
    out = np.empty(int(dims.sum()), dtype=np.float32)
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.searchsorted(turn[by_turn], np.arange(1, int(turn.max(initial=0)) + 1))
    for nth, chosen in enumerate(np.split(by_turn, cuts)):
        for dim in np.unique(dims[number[chosen]]):
            mine = chosen[dims[number[chosen]] == dim]
            columns = np.arange(dim)
            to = begins[number[mine]][:, None] + columns
            came = rows.grads[(ends[order[mine]] - dim)[:, None] + columns]
            out[to] = came if nth == 0 else out[to] + came
    return RowGradients(rows.tables[first], rows.keys[first], np.zeros(len(first), np.int64), dims, out)


def homes(ids: Sequence[tuple[Tables, Numbers]], rank: int) -> Numbers:
    """Return the rank that sums each row of `rank`: the lowest rank that has the row. `ids` holds the distinct rows of
    every rank.
    """
    ranks = np.repeat(np.arange(len(ids)), [len(keys) for _, keys in ids])
    number, first = distinct(np.concatenate([one[0] for one in ids]), np.concatenate([one[1] for one in ids]))
    mine: Numbers = ranks[first][number[ranks == rank]]
    return mine
