"""Pure. How long the oldest untrained record of a partition has waited, whatever anybody's time of day does.

In: ends of the partition, as they were when somebody looked (`Ends.note`; a clock that only goes forward). Out: when an
offset had come (`Ends.came`), so that lag is a difference of two readings of one clock. What had come before the first
look is known by its stamp only.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

MOST = 256
"""Points of one partition; when there are more every second one is dropped, so that they reach back far enough."""


@dataclass(slots=True)
class PartitionEnds:
    """Of one partition."""

    times: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def note(self, at: float, end: int) -> None:
        if self.ends and end <= self.ends[-1]:
            return
        self.times.append(at)
        self.ends.append(end)
        if len(self.ends) > MOST:
            self.times = [*self.times[:1], *self.times[1:-1:2], *self.times[-1:]]
            self.ends = [*self.ends[:1], *self.ends[1:-1:2], *self.ends[-1:]]

    def forget(self, trained: int) -> None:
        """What lies before is trained; one point before it stays, to reckon from."""
        first = bisect_right(self.ends, trained)
        if first > 1:
            del self.times[: first - 1], self.ends[: first - 1]

    def came(self, offset: int) -> float | None:
        place = bisect_right(self.ends, offset)
        if place == 0 or place == len(self.ends):
            return None if place == 0 else self.times[-1]
        before, after = self.ends[place - 1], self.ends[place]
        share = (offset - before) / (after - before)
        return self.times[place - 1] + share * (self.times[place] - self.times[place - 1])


def lag_s(now: float, *, came: float | None, stamped: float) -> float:
    """Seconds that a record has waited. `came`: by the own clock, if known; `stamped`: when it was appended by its own
    word, as a reading of the same clock. A stamp is finer, but may be wrong: one of the future, or one that is older
    than the record can be, does not count."""
    by_stamp = now - stamped
    if came is None:
        return max(0.0, by_stamp)
    return min(now - came, by_stamp) if by_stamp >= 0 else max(0.0, now - came)
