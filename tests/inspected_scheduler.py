"""A scheduler that shows its directory of the caches."""

from springtide_lab.bench.cache import plan_traffic


class InspectedScheduler(plan_traffic.ComparingScheduler):
    def clear(self) -> None:
        self._native.clear()

    def infrequency(self, table: int) -> float:
        """Return Herald's degree of infrequency: the share of used rows that are rarer than a worker's samples."""
        return float(self._native.infrequency(table))

    @property
    def step(self) -> int:
        return int(self._native.step)
