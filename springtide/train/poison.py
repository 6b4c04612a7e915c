"""Samples that cannot be made: which they are, and the batch without them.

In: a data set's `fetch` and the indices of a batch that raised. Out: the culprits with the first of their errors, and
what is left of the batch. Next: train/feeding.py tells of them, and trains the rest or gives the batch up.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.data.source import Fetch, Indices, on_one_line
from springtide.domain.feeding import samples_named


@dataclass(frozen=True, slots=True)
class Poison:
    """Samples of one batch that raise by themselves."""

    indices: tuple[int, ...]
    error: str
    """The first one's, on one line."""

    def __str__(self) -> str:
        return samples_named(self.indices)


def find(fetch: Fetch, indices: Indices) -> Poison | None:
    """The samples that cannot be made, one by one; None: each of them can."""
    culprits, error = [], ""
    for index in indices:
        try:
            fetch(np.array([index], dtype=np.int64))
        except Exception as raised:  # whatever a user's data set may raise
            culprits.append(int(index))
            error = error or on_one_line(raised)
    return Poison(tuple(culprits), error) if culprits else None


def without(fetch: Fetch, indices: Indices, poison: Poison | None) -> Any:
    """The batch without them; None: nothing is left of it, or that raises too."""
    left = indices if poison is None else indices[~np.isin(indices, poison.indices)]
    if not len(left):
        return None
    try:
        return fetch(left)
    except Exception:  # it is not a sample: then nobody can make this batch, and the first error says so
        return None
