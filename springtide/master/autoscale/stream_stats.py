"""Adds up the stream reports of workers: records arrived and trained, lag, and how busy workers are.

Nothing is journaled: a new master has all values after one heartbeat of each worker.
"""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import fields, replace

import msgspec

from springtide.domain.core.roles import Life, Role
from springtide.domain.data.streams import StreamCounts, StreamUse
from springtide.planning.online.capacity_model import WorkerWork
from springtide.planning.online.slo_metrics import PartitionEnds, lag_s

MOST_LOOKS = 600


class PartitionStats(msgspec.Struct):
    """Offsets of one partition."""

    trained: int
    end: int
    oldest_at: float
    ends: PartitionEnds = msgspec.field(default_factory=PartitionEnds)


class StreamStats:
    """Stream statistics of one job."""

    def __init__(self, *, wall: float, at: float) -> None:
        """`wall` is the time of day now, and `at` the monotonic time. Later, only the monotonic clock is read, so
        changes of the time of day have no effect."""
        self._since = wall - at
        self.known: dict[int, PartitionStats] = {}
        self.uses: dict[Role, tuple[Life, StreamUse]] = {}
        """Newest report of each worker's last incarnation."""
        self._gone = StreamUse()
        self._begun = 0
        """Sum of the partition ends in the first reports. Records before these offsets do not count as arrivals,
        because their arrival times are unknown."""
        self._looks: deque[tuple[float, dict[Life, WorkerWork]]] = deque(maxlen=MOST_LOOKS)

    def on_report(self, role: Role, incarnation: int, use: StreamUse, *, at: float) -> None:
        before = self.uses.get(role)
        life = Life(role, incarnation)
        if before is not None and before[0] != life:
            over = replace(before[1], queue=0, lag_p50_s=0.0, lag_p99_s=0.0)
            self._gone = _sum([self._gone, over])
        self.uses[role] = (life, use)
        for partition in use.partitions:
            known = self.known.get(partition.partition)
            if known is None:
                known = self.known[partition.partition] = PartitionStats(
                    partition.trained, partition.end, partition.oldest_at
                )
                self._begun += partition.end
            # the counts can decrease, because the loss of a server rolls the ledger back
            known.trained, known.oldest_at = partition.trained, partition.oldest_at
            known.end = max(known.end, partition.end)
            known.ends.note(at, known.end)
            known.ends.forget(partition.trained)

    @property
    def arrived(self) -> int:
        return sum(part.end for part in self.known.values()) - self._begun

    @property
    def trained(self) -> int:
        return sum(part.trained for part in self.known.values())

    @property
    def backlog(self) -> int:
        return sum(max(0, part.end - part.trained) for part in self.known.values())

    def lag_s(self, at: float) -> float:
        return max((self._lag_of(part, at) for part in self.known.values()), default=0.0)

    def lags(self, at: float) -> dict[int, float]:
        """Return the waiting time of the oldest untrained record of each partition."""
        return {partition: self._lag_of(part, at) for partition, part in self.known.items()}

    def _lag_of(self, part: PartitionStats, at: float) -> float:
        came = part.ends.arrived_at(part.trained)
        if part.end <= part.trained or not (part.oldest_at or came is not None):
            return 0.0
        return lag_s(at, came=came, stamped=part.oldest_at - self._since if part.oldest_at else -math.inf)

    @property
    def total(self) -> StreamUse:
        """Return the totals of all workers, past and present. Queues count only for workers that are alive."""
        return _sum([self._gone, *(use for _, use in self.uses.values())])

    def at_work(self, life: Life) -> bool:
        known = self.uses.get(life.role)
        return known is not None and known[0] == life and known[1].records > 0

    def poll(self, alive: Collection[Life], *, at: float) -> None:
        works = {
            life: WorkerWork(use.records, use.busy_s, use.waited_s, use.steps)
            for life, use in self.uses.values()
            if life in alive
        }
        self._looks.append((at, works))

    def works(self, seconds: float, alive: Collection[Life], *, at: float) -> dict[int, WorkerWork]:
        """Return the work of the last `seconds` by rank, for workers that were present throughout."""
        if not self._looks:
            return {}
        then = next((works for when, works in reversed(self._looks) if when <= at - seconds), None)
        now = self._looks[-1][1]
        if then is None:
            return {}
        return {life.role.rank: now[life].since(then[life]) for life in alive if life in now and life in then}


COUNTS = tuple(field.name for field in fields(StreamCounts) if field.name != "unkept_why")
COUNTED = (*COUNTS, "queue", "waited_s", "busy_s")


def counts_of(total: StreamUse, *, unkept_why: str) -> StreamCounts:
    return StreamCounts(unkept_why=unkept_why, **{name: getattr(total, name) for name in COUNTS})


def _sum(uses: list[StreamUse]) -> StreamUse:
    total = {name: sum(getattr(use, name) for use in uses) for name in COUNTED}
    worst = {name: max(getattr(use, name) for use in uses) for name in ("lag_p50_s", "lag_p99_s")}
    return replace(StreamUse(), **total, **worst)
