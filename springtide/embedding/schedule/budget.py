"""Pure. Fit a sample allocation into its time budget: tables to score (Herald's adaptive LAIA) or sweeps to search.

A schedule runs beside a training iteration. It costs nothing if it takes no longer than the iteration less the
embedding traffic; this time is the budget. Reading, planning and the snapshot are always needed, so the allocation gets
the rest of the budget. Its time grows with its units: the tables it scores, or the sweeps of a searching policy.

In: the duration of recent schedules, by stage. Out: a number of units. If units are tables, `scheduler.Scheduler`
scores those with the highest degree of infrequency. This module reads no clock. Ranks measure different times, so one
rank decides for all, and the number travels with a step.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MARGIN = 0.1
"""Fraction of the budget kept free, because schedule times vary."""
LEAST = 4
"""Minimum number of units. Fewer units save almost no schedule time and cost a tenth more transmissions."""
MEMORY = 32
"""Number of recent schedules that count. Older schedules had a different load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTime:
    """Duration of one schedule."""

    units: int
    """Number of tables scored, or of sweeps."""
    allocate_s: float
    rest_s: float
    """Seconds of all stages except the allocation."""


def took(seconds: Mapping[str, float], *, units: int) -> ScheduleTime:
    """Build the duration from the stages of a `_native.Scheduled`."""
    return ScheduleTime(
        units=units,
        allocate_s=seconds["allocate"],
        rest_s=sum(each for stage, each in seconds.items() if stage != "allocate"),
    )


def units_within(budget_s: float, history: Sequence[ScheduleTime], *, most: int, least: int = LEAST) -> int:
    """Return how many units, from `least` to `most`, keep the next schedule within `budget_s`.

    Without a history the result is `most`, so that the first schedules show their cost. The base cost of an allocation
    without units shows only after the number of units has changed. Until then the time counts as proportional to the
    units. This allows too many units when their number shrinks, and the next schedules correct it.
    """
    recent = history[-MEMORY:]
    if not recent:
        return most
    left_s = budget_s * (1 - MARGIN) - high(each.rest_s for each in recent)
    base_s, unit_s = line(recent)
    if unit_s <= 0:
        return most
    return min(most, max(least, math.floor((left_s - base_s) / unit_s)))


def line(recent: Sequence[ScheduleTime]) -> tuple[float, float]:
    """Fit a line to the allocation times; return the seconds without units and the seconds per unit."""
    by_units: dict[int, list[float]] = {}
    for each in recent:
        by_units.setdefault(each.units, []).append(each.allocate_s)
    points = {units: high(seconds) for units, seconds in by_units.items()}
    most = max(points)
    if len(points) == 1:
        return (0.0, points[most] / most) if most else (points[most], 0.0)
    fit = statistics.linear_regression(list(points), list(points.values()))
    slope = max(fit.slope, 0.0)
    base = max(fit.intercept, 0.0)
    return (base, slope) if slope else (0.0, points[most] / max(most, 1))


def high(seconds: Iterable[float]) -> float:
    ordered = sorted(seconds)
    return ordered[math.ceil(0.9 * len(ordered)) - 1]
