"""Pure. Fit an allocation into its time: tables to score (Herald's adaptive LAIA) or sweeps to search.

A schedule is free while it takes no longer than the iteration that it runs beside, less the embedding's own traffic:
the budget. Reading, plan and snapshot are needed in any case, so what is left of the budget is for the allocation, and
its time grows with the tables that are scored, or with the sweeps of a policy that searches: units. In: how long the
last schedules took, by stage. Out: a number of units; of tables `allocate.Scheduler` takes those of the highest degree
of infrequency. No clock here, and none may decide by itself: ranks measure different times, so one of them decides for
all and the number travels with a step.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MARGIN = 0.1
"""Of the budget, kept free: schedules vary."""
LEAST = 4
"""Units that are always there: fewer save next to nothing of a schedule, and cost a tenth more transmissions."""
MEMORY = 32
"""Schedules that count; older ones were another load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTime:
    """One schedule."""

    units: int
    """Tables that were scored, or sweeps."""
    allocate_s: float
    rest_s: float
    """All other stages."""


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
