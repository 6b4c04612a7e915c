"""Pure. What comes to which partition at what time, how fast workers are, and what is read off a run afterwards.

In: `springtide_lab.bench.stream.shuffling.shuffle` picks scenes. Out: how many records are due by when (producer.py),
lags (from what processes.py brings).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RECORD_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One stream and the workers that train it."""

    name: str
    partitions: int
    workers: int = 8
    capacity: float = 2000.0
    """Records a second that a worker trains: a wait of known length, no computing."""
    load: float = 0.8
    """Of all workers' capacity, what comes to each worker while all partitions are alike."""
    hot: int = 1
    """Partitions that get more than the others, all of one worker."""
    times: float = 10.0
    """A hot partition's rate during the burst, in rates of another."""
    begins_s: float = 2.0
    burst_s: float = 4.0
    ends_s: float = 20.0
    """When the scene is over."""
    at_once: bool = False
    """What the burst brings beyond the usual comes in one moment: the same backlog whatever is done about it."""
    batch: int = 100
    linger_s: float = 0.5

    @property
    def rate(self) -> float:
        """Records a second of a partition."""
        return self.load * self.capacity * self.workers / self.partitions

    @property
    def quiet_from_s(self) -> float:
        """When every partition is as the others again."""
        return self.begins_s if self.at_once else self.begins_s + self.burst_s

    def due(self, partition: int, at_s: float) -> int:
        """Records that have come to a partition by then."""
        count = self.rate * max(0.0, at_s)
        if self.owner(partition) == 0 and partition < self.hot * self.workers:
            in_burst = min(max(0.0, at_s - self.begins_s), self.burst_s)
            if self.at_once and at_s > self.begins_s:
                in_burst = self.burst_s
            count += self.rate * (self.times - 1) * in_burst
        return int(count)

    def owner(self, partition: int) -> int:
        """Which worker reads it."""
        return partition % self.workers

    def alone_s(self) -> float:
        """How long after it is quiet the worker of hot partitions would need, if nobody helped: by arithmetic."""
        return self._needs_s((1 - self.load) * self.capacity)

    def together_s(self) -> float:
        """The same, if all workers did nothing but help and nothing were lost on the way."""
        return self._needs_s((1 - self.load) * self.capacity * self.workers)

    def _needs_s(self, spare: float) -> float:
        extra = self.rate * (self.times - 1) * self.hot
        return (extra if self.at_once else max(0.0, extra - spare)) * self.burst_s / spare


def lags(times: Floats, offsets: Ints, appended: Floats) -> Floats:
    """At each time, how long the oldest record of a partition has waited that is not trained; 0 when there is none.

    times: when somebody looked. offsets: how far the partition was trained then. appended: when each record came.
    """
    there = np.searchsorted(appended, times, side="right")
    waiting = offsets < there
    first = np.where(waiting, np.minimum(offsets, max(0, len(appended) - 1)), 0)
    return np.where(waiting, times - appended[first], 0.0) if len(appended) else np.zeros(len(times))


def waiting(times: Floats, offsets: Ints, appended: Floats) -> Ints:
    """At each time, how many records of a partition have come and are not trained."""
    there: Ints = np.searchsorted(appended, times, side="right").astype(np.int64)
    waits: Ints = np.maximum(there - offsets, np.int64(0))
    return waits


def drained_at(times: Floats, amount: Floats, *, since: float, calm: float) -> float | None:
    """From when on, of the times since then, the amount stays within `calm`; None: not to the end."""
    restless = np.flatnonzero((amount > calm) & (times >= since))
    if not len(restless):
        return since
    last = int(restless[-1])
    return float(times[last + 1]) if last + 1 < len(times) else None
