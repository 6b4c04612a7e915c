"""Pure. What plain caches transmit in bsp: samples dealt out at random, every update pushed, LRU on every worker.

In: batches of ids. Out: `Plain`, counts by cause: a row pulled because it was not there (a miss) or because another
worker had trained it since (an update), and rows pushed. This is HET in bsp, the paper's "vanilla"; versions are kept
here row by row and worker by worker, apart from the native scheduler, whose figures it checks. Next: `rows_counted`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Rows a worker and iteration."""

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


def count(
    batches: Sequence[Ids], rows: Sequence[int], *, workers: int, capacity: int, skip: int, seed: int = 0
) -> Plain:
    """Train the batches; the first `skip` fill the caches and do not count."""
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
            cache.version[keys] = -1  # others have trained it too: what is here lacks their part
            own = np.intersect1d(keys, alone, assume_unique=True)
            cache.version[own] = version[own]
    counted = max(len(batches) - skip, 1) * workers
    misses, stale, pushes = (float(total) / counted for total in totals)
    return Plain(misses=misses, stale=stale, pushes=pushes)


class _Lru:
    """One worker's cache: when each row was used last (-1: not there), and the version that it has."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.used = np.full(rows, -1, dtype=np.int32)
        self.version = np.full(rows, -1, dtype=np.int32)
        self._capacity, self._held = capacity, 0
        self._order: list[Ids] = []
        self._oldest = 0

    def touch(self, keys: Ids, step: int) -> None:
        """These are used now; what was used longest ago leaves if there is no room."""
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
