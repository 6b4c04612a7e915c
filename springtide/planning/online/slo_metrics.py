"""Pure. Measures how well a job keeps up with its stream, by the four metrics of Kale's section 4.1.

The lag at a moment is the lag of the samples that are trained at that moment: their time from append to training.
Inputs are in seconds; the metrics have the paper's units.
"""

from bisect import bisect_right
from dataclasses import dataclass

import msgspec

from springtide import errors

SLO_S = 1200.0
"""A lag above this value violates the SLO: 20 minutes, as in the paper."""
MINUTE_S, HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSums:
    """Sums over a span of time, from which the SLO metrics are computed. Add two objects to join their spans."""

    seconds: float = 0.0
    violated_s: float = 0.0
    lag_s2: float = 0.0
    """Integral of lag over time, in seconds squared."""
    down_s: float = 0.0
    worker_s: float = 0.0
    """Integral of workers over time, in worker-seconds."""

    @property
    def violation(self) -> float:
        """SLO violation rate: share of time with a lag above the SLO."""
        return self.violated_s / self.seconds if self.seconds else 0.0

    @property
    def lag_min(self) -> float:
        """Accumulated lag: sum over all minutes of the lag in minutes (Eqn 11)."""
        return self.lag_s2 / MINUTE_S**2

    @property
    def down_min(self) -> float:
        return self.down_s / MINUTE_S

    @property
    def worker_hours(self) -> float:
        """Worker hours, which the paper calls GPU hours."""
        return self.worker_s / HOUR_S

    def __add__(self, other: "SloSums") -> "SloSums":
        return SloSums(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def then(
        self, seconds: float, *, lag_s: float, workers: float, down: bool = False, slo_s: float = SLO_S
    ) -> "SloSums":
        if not seconds >= 0 or not lag_s >= 0 or not workers >= 0:
            raise errors.BadInput(
                f"{seconds:g} s with a lag of {lag_s:g} s and {workers:g} workers: expected nothing below 0"
            )
        return self + SloSums(
            seconds=seconds,
            violated_s=seconds * (lag_s > slo_s),
            lag_s2=seconds * lag_s,
            down_s=seconds * down,
            worker_s=seconds * workers,
        )


MOST = 256
"""Most points to keep for each partition. Above this number, every second point is dropped, so that the rest still
covers a long time.
"""


class PartitionEnds(msgspec.Struct):
    """End offsets of one partition over time."""

    times: list[float] = msgspec.field(default_factory=list)
    ends: list[int] = msgspec.field(default_factory=list)

    def note(self, at: float, end: int) -> None:
        if self.ends and end <= self.ends[-1]:
            return
        self.times.append(at)
        self.ends.append(end)
        if len(self.ends) > MOST:
            self.times = [*self.times[:1], *self.times[1:-1:2], *self.times[-1:]]
            self.ends = [*self.ends[:1], *self.ends[1:-1:2], *self.ends[-1:]]

    def forget(self, trained: int) -> None:
        """Drop the points before a trained offset. One point before that offset stays, for interpolation."""
        first = bisect_right(self.ends, trained)
        if first > 1:
            del self.times[: first - 1], self.ends[: first - 1]

    def arrived_at(self, offset: int) -> float | None:
        place = bisect_right(self.ends, offset)
        if place == 0 or place == len(self.ends):
            return None if place == 0 else self.times[-1]
        before, after = self.ends[place - 1], self.ends[place]
        share = (offset - before) / (after - before)
        return self.times[place - 1] + share * (self.times[place] - self.times[place - 1])


def lag_s(now: float, *, came: float | None, stamped: float) -> float:
    """Return the seconds that a record has waited.

    `came` is the time of its arrival by the local clock, if known. `stamped` is the record's own timestamp,
    converted to the same clock. The timestamp is more precise, but may be wrong. A timestamp is ignored if it lies in
    the future, or if it is older than the record can be.
    """
    by_stamp = now - stamped
    if came is None:
        return max(0.0, by_stamp)
    return min(now - came, by_stamp) if by_stamp >= 0 else max(0.0, now - came)
