"""Ids as recommendation logs have them: zipf in frequency, scattered in value, the same for every contestant.

In: a seeded generator. Out: int64 arrays; `write` puts them where a worker process finds them.
"""

import pathlib

import numpy as np
from numpy.typing import NDArray

ZIPF = 1.05  # the exponent that facts about click logs are usually given for


def zipf(rng: np.random.Generator, *, rows: int, count: int, exponent: float = ZIPF) -> NDArray[np.int64]:
    """`count` ids below `rows`; the k-th most frequent comes with weight k**-exponent, and lies anywhere."""
    weight = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    rank = np.searchsorted(weight, rng.random(count) * weight[-1])
    scattered: NDArray[np.int64] = rng.permutation(rows).astype(np.int64)[rank]
    return scattered


def batches(seed: int, *, batches: int, tables: int, rows: int, batch: int) -> NDArray[np.int64]:
    """Ids of shape [batches, tables, batch], one id a bag; each table has its own order of popularity."""
    rng = np.random.default_rng(seed)
    drawn = [zipf(rng, rows=rows, count=batches * batch).reshape(batches, batch) for _ in range(tables)]
    return np.ascontiguousarray(np.stack(drawn, axis=1))


def write(ids: NDArray[np.int64], path: pathlib.Path) -> None:
    """Raw little-endian int64, for `torch.from_file` in a worker."""
    ids.astype("<i8").tofile(path)
