"""A scheduler that shows its directory of the caches."""

import numpy as np
from numpy.typing import NDArray

from springtide_lab.bench.cache import plan_traffic


class InspectedScheduler(plan_traffic.ComparingScheduler):
    def clear(self) -> None:
        self._native.clear()

    def cached(self, worker: int) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.bool_]]:
        """Return tables and keys of one worker's rows in eviction order, and which rows only this worker has."""
        tables, keys, dirty = self._native.cached(worker)
        return tables, keys, dirty.astype(bool)

    def infrequency(self, table: int) -> float:
        """Return Herald's degree of infrequency: the share of used rows that are rarer than a worker's samples."""
        return float(self._native.infrequency(table))

    @property
    def step(self) -> int:
        return int(self._native.step)
