"""Pure. Stores the past traffic of a job in equal time steps, as far back as forecasts need.

In: number of samples that arrived between two moments (`TrafficHistory.arrive`). Times are seconds of a monotonic clock
with a fixed origin. Out: a `PastTraffic` without gaps, for seasonal.py. After a pause, the job spreads the samples that
arrived meanwhile over the gap, in the pattern of the day before.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from springtide import errors
from springtide.planning.online.forecast.traffic import DAY_S, PastTraffic

STEP_S = 600.0
KEPT_S = 36 * DAY_S
"""Five weeks and a day: four weeks and today make a usual week."""
SEEN_SHARE = 0.5  # minimum observed share of a step for a valid mean


class TrafficBucket(NamedTuple):
    """Traffic of one time step, as far as it was observed."""

    number: int
    """Number of the step since the time origin."""
    samples: float
    seconds: float
    """Seconds of the step in which arrivals were counted."""


@dataclass(slots=True)
class TrafficHistory:
    """Past traffic of one job."""

    step_s: float = STEP_S
    steps: dict[int, TrafficBucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_s <= 0 or DAY_S % self.step_s:
            raise errors.BadInput(f"traffic by {self.step_s:g} s: wanted a step that a day is a multiple of")

    @property
    def day(self) -> int:
        return round(DAY_S / self.step_s)

    def put(self, steps: Iterable[TrafficBucket]) -> None:
        self.steps |= {step.number: step for step in steps}

    def arrive(self, since: float, until: float, samples: float) -> list[TrafficBucket]:
        """Record samples that arrived between two moments, and return the steps that this completes."""
        if not until > since:
            return []
        first, last = math.floor(since / self.step_s), math.floor(until / self.step_s)
        if last - first > KEPT_S / self.step_s:  # after a gap of weeks the old history is useless
            self.steps.clear()
            since, first = last * self.step_s, last
            samples = 0.0
        shares = self._shares(since, until, first, last)
        for number, seconds, share in shares:
            known = self.steps.get(number, TrafficBucket(number, 0.0, 0.0))
            self.steps[number] = TrafficBucket(number, known.samples + samples * share, known.seconds + seconds)
        oldest = last - KEPT_S / self.step_s
        for number in [number for number in self.steps if number < oldest]:
            del self.steps[number]
        return [self.steps[number] for number in range(first, last)]

    def _shares(self, since: float, until: float, first: int, last: int) -> list[tuple[int, float, float]]:
        """Return each step's number, its seconds in the span, and its share of the arrivals."""
        seconds = [
            (number, min(until, (number + 1) * self.step_s) - max(since, number * self.step_s))
            for number in range(first, last + 1)
        ]
        parts = [each for each in seconds if each[1] > 0]
        weights = [length * self._day_before(number) for number, length in parts] if last > first + 1 else []
        if not weights or sum(weights) <= 0:
            weights = [length for _, length in parts]
        total = sum(weights)
        return [(number, length, weight / total) for (number, length), weight in zip(parts, weights, strict=True)]

    def _day_before(self, number: int) -> float:
        before = self.steps.get(number - self.day)
        return before.samples / before.seconds if before is not None and before.seconds else 0.0

    def history(self, at: float) -> PastTraffic | None:
        """Return the complete steps before this moment; None if there are none. Gaps are filled from the day before, or
        interpolated."""
        until = math.floor(at / self.step_s)
        known = {
            step.number: step.samples / step.seconds
            for step in self.steps.values()
            if step.number < until and step.seconds >= SEEN_SHARE * self.step_s
        }
        if not known:
            return None
        first = min(known)
        for number in range(first, until):
            if number not in known and number - self.day in known:
                known[number] = known[number - self.day]
        numbers = sorted(known)
        values = np.interp(np.arange(first, until), numbers, [known[number] for number in numbers])
        return PastTraffic(step_s=self.step_s, values=np.asarray(values, dtype=float))
