"""Pure. How often rows come: distinct rows an iteration, and the degree of infrequency (DoI) of what caches hold.

In: an id matrix. Out: numbers for Figs. 3, 6 and 10 of Herald (004). A row is infrequent when it comes less often in an
epoch than a worker trains samples in it; what a cache holds are the most frequent rows, as many as fit.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def distinct(ids: Ids, samples: int) -> float:
    """Distinct rows of all tables in an iteration of so many samples, on average."""
    parts = [ids[at : at + samples] for at in range(0, len(ids) - samples + 1, samples)]
    return float(np.mean([sum(len(np.unique(column)) for column in part.T) for part in parts]))


def growth(ids: Ids, *, workers: int, small: int = 64, large: int = 256) -> float:
    """Fig. 3: how many times more rows an iteration has when each worker's batch grows so."""
    return distinct(ids, large * workers) / distinct(ids, small * workers)


def counts(ids: Ids, rows: Sequence[int]) -> list[NDArray[np.int64]]:
    return [np.bincount(column, minlength=size) for column, size in zip(ids.T, rows, strict=True)]


def hottest(seen: Sequence[NDArray[np.int64]], share: float) -> list[NDArray[np.bool_]]:
    """Which rows a cache of that share of all tables holds: the most frequent, table by table a mask."""
    every = np.concatenate(seen)
    held = max(int(share * len(every)), 1)
    mask = np.zeros(len(every), dtype=bool)
    mask[np.argsort(every, kind="stable")[::-1][:held]] = True
    return np.split(mask & (every > 0), np.cumsum([len(one) for one in seen])[:-1])


def doi(seen: Sequence[NDArray[np.int64]], share: float, *, samples: int, workers: int) -> float:
    """Fig. 6: of the rows that a cache holds, the part that is infrequent."""
    held = hottest(seen, share)
    inside = np.concatenate([count[mask] for count, mask in zip(seen, held, strict=True)])
    return float(np.mean(inside < samples / workers))


def doi_by_table(seen: Sequence[NDArray[np.int64]], share: float, *, samples: int, workers: int) -> list[float]:
    """Fig. 10: the same for each table that the cache holds something of."""
    return [
        float(np.mean(count[mask] < samples / workers))
        for count, mask in zip(seen, hottest(seen, share), strict=True)
        if mask.any()
    ]
