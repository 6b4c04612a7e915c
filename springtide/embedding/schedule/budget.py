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
    """From the stages of a `_native.Scheduled`."""
    return ScheduleTime(
        units=units,
        allocate_s=seconds["allocate"],
        rest_s=sum(each for stage, each in seconds.items() if stage != "allocate"),
    )


def units_within(budget_s: float, history: Sequence[ScheduleTime], *, most: int, least: int = LEAST) -> int:
    """How many units the next schedule may have so that all of it stays inside `budget_s`: `least` to `most`.

    Without a history `most`: the first schedules say what they cost. What an allocation takes with no units at all is
    seen only when their number changed; until then its time counts as growing from zero, which errs on the side of too
    many when the number shrinks, and is put right by the next schedules.
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
    """Seconds of an allocation without units, and of every unit: a line through what was seen."""
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
