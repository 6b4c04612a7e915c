"""Pure. Past traffic and traffic forecasts, in equal time steps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors

Array = NDArray[np.float64]
DAY_S = 86_400.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTraffic:
    """Past traffic in equal time steps."""

    step_s: float
    values: Array
    """Mean samples per second of each step, newest last; NaN where unknown."""

    def __post_init__(self) -> None:
        if not 0 < self.step_s <= DAY_S or abs(DAY_S / self.step_s - round(DAY_S / self.step_s)) > 1e-9:
            raise errors.BadInput(f"traffic by {self.step_s:g} s: expected a step that a day is a multiple of")
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim != 1 or np.isinf(values).any() or (values < 0).any():
            raise errors.BadInput("traffic: expected one number of samples a second for each step, 0 or more, or NaN")
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, at_s: Array, rates: Array, step_s: float) -> "PastTraffic":
        """Build past traffic from rates at ascending times: the mean of each step, and NaN for a step without rates."""
        place = ((at_s - at_s[0]) // step_s).astype(np.int64)
        count = np.bincount(place)
        sums = np.bincount(place, weights=rates)
        return cls(step_s=step_s, values=np.where(count > 0, sums / np.maximum(count, 1), np.nan))

    @property
    def day(self) -> int:
        return round(DAY_S / self.step_s)

    @property
    def days(self) -> int:
        return len(self.values) // self.day

    def before(self, step: int, *, days: int | None = None) -> "PastTraffic":
        first = 0 if days is None else max(0, step - days * self.day)
        return replace(self, values=self.values[first:step])

    def filled(self) -> "PastTraffic":
        """Fill the gaps: short gaps by interpolation, and longer gaps with values of the same time on other days.

        Steps before the first known value are cut off.
        """
        known = ~np.isnan(self.values)
        if known.all():
            return self
        first = int(np.argmax(known)) if known.any() else len(known)
        values, known = self.values[first:].copy(), known[first:]
        if len(values):
            here = np.arange(len(values))
            lines = np.interp(here, here[known], values[known])
            usual = _same_time(values, self.day)
            use_line = ~known & (_short(known, int(HOUR_S // self.step_s)) | np.isnan(usual))
            values = np.where(known, values, np.where(use_line, lines, usual))
        return replace(self, values=values)


def _short(known: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return the steps in gaps of at most `most` steps."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], known, [True])).astype(np.int8)))
    short = np.zeros(len(known), dtype=bool)
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        short[first:end] = end - first <= most
    return short


def _same_time(values: Array, day: int) -> Array:
    """Return, for each step of the day, the median over all days; NaN if no day has a value."""
    days = -(-len(values) // day)
    whole = np.full(days * day, np.nan)
    whole[len(whole) - len(values) :] = values
    table = whole.reshape(days, day)
    nobody = np.isnan(table).all(axis=0)
    usual = np.full(day, np.nan)
    usual[~nobody] = np.nanmedian(table[:, ~nobody], axis=0)
    return np.tile(usual, days)[len(whole) - len(values) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateForecast:
    """Traffic forecast, in samples per second."""

    step_s: float
    mean: Array
    low: Array
    high: Array
    """90th percentile."""
    member: str
    """Model that made the forecast, or the member with the largest weight."""
    why: str
    tried: int = 0
    """Number of past days on which the model was tested to find `low` and `high`; 0 means that they are guesses."""

    def because(self, why: str) -> "RateForecast":
        return replace(self, why=f"{why}; {self.why}" if self.why else why)


STEP_S = 600.0
KEPT_S = 36 * DAY_S
"""Seconds of history to keep: five weeks and one day. A usual week is computed from four whole weeks."""
SEEN_SHARE = 0.5  # the mean of a step is valid only if at least this share of the step was observed


class TrafficBucket(NamedTuple):
    """Traffic in one time step, as far as the job observed it."""

    number: int
    """Number of the step since the time origin."""
    samples: float
    seconds: float
    """Seconds of this step in which the job counted arrivals."""


class TrafficHistory(msgspec.Struct):
    """History of the traffic of one job."""

    step_s: float = STEP_S
    steps: dict[int, TrafficBucket] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_s <= 0 or DAY_S % self.step_s:
            raise errors.BadInput(f"traffic by {self.step_s:g} s: expected a step that a day is a multiple of")

    @property
    def day(self) -> int:
        return round(DAY_S / self.step_s)

    def put(self, steps: Iterable[TrafficBucket]) -> None:
        self.steps |= {step.number: step for step in steps}

    def arrive(self, since: float, until: float, samples: float) -> list[TrafficBucket]:
        """Record samples that arrived between two moments, and return the steps that are now complete."""
        if not until > since:
            return []
        first, last = math.floor(since / self.step_s), math.floor(until / self.step_s)
        if last - first > KEPT_S / self.step_s:  # drop the history, because after a gap of weeks it is useless
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
        """For each step that overlaps the span, return the step's number, the seconds of overlap, and its share of the
        span's arrivals.
        """
        seconds = [
            (number, min(until, (number + 1) * self.step_s) - max(since, number * self.step_s))
            for number in range(first, last + 1)
        ]
        parts = [pair for pair in seconds if pair[1] > 0]
        weights = [length * self._day_before(number) for number, length in parts] if last > first + 1 else []
        if not weights or sum(weights) <= 0:
            weights = [length for _, length in parts]
        total = sum(weights)
        return [(number, length, weight / total) for (number, length), weight in zip(parts, weights, strict=True)]

    def _day_before(self, number: int) -> float:
        before = self.steps.get(number - self.day)
        return before.samples / before.seconds if before is not None and before.seconds else 0.0

    def history(self, at: float) -> PastTraffic | None:
        """Return the complete steps before this moment; None if there is none."""
        until = math.floor(at / self.step_s)
        known = {
            step.number: step.samples / step.seconds
            for step in self.steps.values()
            if step.number < until and step.seconds >= SEEN_SHARE * self.step_s
        }
        if not known:
            return None
        values = [known.get(number, math.nan) for number in range(min(known), until)]
        return PastTraffic(step_s=self.step_s, values=np.array(values))
