"""Pure. Rows of different lengths, one below the other in one array: what many jobs have, looked at all at once.

In: `RaggedRows`, which row each element is of. Out: the same few questions for every row. Next:
`planning.candidates.pareto`, `planning.allocate.bids` and `planning.allocate.choose`, for which an array operation a
job would cost more than what it computes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[Any]


class RaggedRows(NamedTuple):
    """Which row each element is of, rows in order, and how long each row is: some may be empty."""

    owner: Index
    lengths: Index

    @property
    def starts(self) -> Index:
        starts: Index = np.cumsum(self.lengths) - self.lengths
        return starts

    @property
    def place(self) -> Index:
        place: Index = np.arange(len(self.owner)) - np.repeat(self.starts, self.lengths)
        return place

    def padded(self, values: NDArray[Any], fill: float) -> NDArray[Any]:
        width = int(self.lengths.max(initial=0))
        whole = np.full((len(self.lengths), width), fill, dtype=values.dtype)
        whole[self.owner, self.place] = values
        return whole

    def only(self, which: Index) -> "RaggedRows":
        """Some of the elements, by mask or by number in order."""
        return of_owners(self.owner[which], len(self.lengths))

    def ordered(self, values: Floats) -> Index:
        """Elements in the order of rising values, row by row; equal ones as they were."""
        starts = self.starts.tolist()
        each = [
            np.argsort(values[first : first + length], kind="stable") + first
            for first, length in zip(starts, self.lengths.tolist(), strict=True)
        ]
        return np.concatenate(each) if each else np.zeros(0, dtype=np.int64)

    def best_before(self, values: Floats) -> Floats:
        """Of each element, the largest of those before it in its row; -inf: it is the first."""
        width = int(self.lengths.max(initial=0))
        whole = np.full((len(self.lengths), width + 1), -np.inf)
        place = self.place
        whole[self.owner, place + 1] = values
        return np.maximum.accumulate(whole, axis=1)[self.owner, place]


def of_lengths(lengths: Sequence[int] | Index) -> RaggedRows:
    counts = np.asarray(lengths, dtype=np.int64)
    return RaggedRows(np.repeat(np.arange(len(counts)), counts), counts)


def of_owners(owner: Index, rows: int) -> RaggedRows:
    return RaggedRows(owner, np.bincount(owner, minlength=rows))
