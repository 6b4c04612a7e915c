"""Pure. Count how often the rows of a stream occur, and the transmissions of plain caches for them.

In: an id matrix or batches of it. Out: figures for Figs. 3, 4, 6 and 10 of Herald (004). `count_plain` simulates HET in
bsp, the paper's "vanilla". The function tracks versions row by row, independently of the native scheduler, and checks
its figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide_lab.bench.cache.id_streams import Ids


def distinct(ids: Ids, samples: int) -> float:
    """Return the mean number of distinct rows of all tables in an iteration of `samples` samples."""
    parts = [ids[at : at + samples] for at in range(0, len(ids) - samples + 1, samples)]
    return float(np.mean([sum(len(np.unique(column)) for column in part.T) for part in parts]))


def growth(ids: Ids, *, workers: int, small: int = 64, large: int = 256) -> float:
    """Return the factor of Fig. 3 by which the rows of an iteration grow when each worker's batch grows."""
    return distinct(ids, large * workers) / distinct(ids, small * workers)


def occurrences(ids: Ids, rows: Sequence[int]) -> list[NDArray[np.int64]]:
    return [np.bincount(column, minlength=size) for column, size in zip(ids.T, rows, strict=True)]


def hottest(seen: Sequence[NDArray[np.int64]], share: float) -> list[NDArray[np.bool_]]:
    """Return a mask per table of its most frequent rows, which a cache with this share of all rows holds."""
    every = np.concatenate(seen)
    held = max(int(share * len(every)), 1)
    mask = np.zeros(len(every), dtype=bool)
    mask[np.argsort(every, kind="stable")[::-1][:held]] = True
    return np.split(mask & (every > 0), np.cumsum([len(one) for one in seen])[:-1])


def doi(seen: Sequence[NDArray[np.int64]], share: float, *, samples: int, workers: int) -> float:
    """Return the share of infrequent rows among the rows that a cache holds (Fig. 6)."""
    held = hottest(seen, share)
    inside = np.concatenate([count[mask] for count, mask in zip(seen, held, strict=True)])
    return float(np.mean(inside < samples / workers))


def doi_by_table(seen: Sequence[NDArray[np.int64]], share: float, *, samples: int, workers: int) -> list[float]:
    """Return the share of each table whose rows are in the cache (Fig. 10)."""
    return [
        float(np.mean(count[mask] < samples / workers))
        for count, mask in zip(seen, hottest(seen, share), strict=True)
        if mask.any()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCaches:
    """Rows that plain caches transmit per worker and iteration."""

    misses: float
    stale: float
    pushes: float

    @property
    def pulls(self) -> float:
        return self.misses + self.stale

    @property
    def transmissions(self) -> float:
        return self.pulls + self.pushes

    @property
    def updates(self) -> float:
        return (self.stale + self.pushes) / self.transmissions

    @property
    def imbalance(self) -> float:
        return float(np.std([self.pulls, self.pushes]) / np.mean([self.pulls, self.pushes]))


def count_plain(
    batches: Sequence[Ids], rows: Sequence[int], *, workers: int, capacity: int, skip: int, seed: int = 0
) -> PlainCaches:
    """Simulate training on the batches; the first `skip` batches fill the caches and do not count."""
    starts = np.concatenate([[0], np.cumsum(rows)[:-1]]).astype(np.int64)
    random = np.random.default_rng([seed, 41])
    caches = [_Lru(sum(rows), capacity) for _ in range(workers)]
    version = np.zeros(sum(rows), dtype=np.int32)
    totals = np.zeros(3)
    for step, batch in enumerate(batches):
        dealt = random.permutation(len(batch)).reshape(workers, -1)
        mine = [np.unique(batch[share] + starts) for share in dealt]
        for cache, keys in zip(caches, mine, strict=True):
            missing = cache.used[keys] < 0
            stale = ~missing & (cache.version[keys] != version[keys])
            if step >= skip:
                totals += [missing.sum(), stale.sum(), len(keys)]
            cache.touch(keys, step)
        trained, by = np.unique(np.concatenate(mine), return_counts=True)
        version[trained] += by.astype(np.int32)
        alone = trained[by == 1]
        for cache, keys in zip(caches, mine, strict=True):
            cache.version[keys] = -1  # outdated, because other workers may have trained these rows
            own = np.intersect1d(keys, alone, assume_unique=True)
            cache.version[own] = version[own]
    counted = max(len(batches) - skip, 1) * workers
    misses, stale, pushes = (float(total) / counted for total in totals)
    return PlainCaches(misses=misses, stale=stale, pushes=pushes)


class _Lru:
    """The cache of one worker: the step of each row's last use (-1 if not cached), and the cached version."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.used = np.full(rows, -1, dtype=np.int32)
        self.version = np.full(rows, -1, dtype=np.int32)
        self._capacity, self._held = capacity, 0
        self._order: list[Ids] = []
        self._oldest = 0

    def touch(self, keys: Ids, step: int) -> None:
        """Mark rows as used now; evict the least recently used rows if there is no room."""
        self._held += int((self.used[keys] < 0).sum())
        self.used[keys] = step
        self._order.append(keys)
        while self._held > self._capacity and self._oldest < len(self._order):
            candidates = self._order[self._oldest]
            leaving = candidates[self.used[candidates] == self._oldest][: self._held - self._capacity]
            self.used[leaving] = -1
            self._held -= len(leaving)
            if self._held > self._capacity:
                self._oldest += 1
