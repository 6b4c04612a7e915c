"""The best settings of each baseline: all of a grid are run on days of the same kind that are not measured.

In: days. Out: of each scheme its `Tuned` setting. Best is *the cheapest that keeps the promise*: the fewest
worker-hours among settings with a violation of 2.6% at most (Kale's own figure); where there are none, the least
violation. Next: `comparison` measures them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.planning.online.decision import ChangeEffect
from springtide_lab.reproduce.kale import traffic, world
from springtide_lab.reproduce.kale.schemes import GRIDS
from springtide_lab.reproduce.kale.springtide_scheme import Outlooks
from springtide_lab.reproduce.kale.traffic import CAPACITY, TrafficDay
from springtide_lab.reproduce.kale.world import Array

SLO_S = 1200.0
PROMISED = 0.026
"""Of the time: the paper's violation rate."""
AT_ONCE = 150
"""Settings that are run side by side: with five days that is 300 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedScheme:
    """A scheme at its best, and how all its settings did."""

    scheme: str
    settings: Any
    tried: int
    figures: Array
    """[settings, 4], means over days: violation, lag in min, downtime in min, worker-hours."""


def run(
    scheme: str, settings: Sequence[Any], days: Sequence[TrafficDay], outlooks: Sequence[Outlooks], doing: ChangeEffect
) -> world.OnlineRun:
    """Each of the settings on each of the days: lanes are days x settings."""
    make = GRIDS[scheme][0]
    lanes = [(day, outlook, one) for day, outlook in zip(days, outlooks, strict=True) for one in settings]
    at = make([outlook for _, outlook, _ in lanes], [one for _, _, one in lanes])
    rates = np.asarray([day.rates for day, _, _ in lanes])
    return world.run(rates, at, workers=traffic.start([day for day, _, _ in lanes]), capacity=CAPACITY, doing=doing)


def figures(done: world.OnlineRun, lanes: Sequence[int], after: int) -> Array:
    """[lanes, 4], as in `Tuned`."""
    kept = [done.kept(lane, after=after, slo_s=SLO_S) for lane in lanes]
    return np.asarray([(one.violation, one.lag_min, one.down_min, one.worker_hours) for one in kept])


def tune(
    scheme: str, days: Sequence[TrafficDay], outlooks: Sequence[Outlooks], doing: ChangeEffect, *, grid: Sequence[Any]
) -> TunedScheme:
    parts = [grid[place : place + AT_ONCE] for place in range(0, len(grid), AT_ONCE)]
    found = np.concatenate([_means(run(scheme, part, days, outlooks, doing), days, len(part)) for part in parts])
    return TunedScheme(scheme=scheme, settings=grid[best(found)], tried=len(grid), figures=found)


def _means(done: world.OnlineRun, days: Sequence[TrafficDay], settings: int) -> Array:
    """[settings, 4], over days."""
    by_lane = figures(done, range(len(days) * settings), days[0].warm)
    return np.asarray(by_lane.reshape(len(days), settings, 4).mean(axis=0))


def best(found: Array) -> int:
    """Which setting: the cheapest that keeps the promise, or the one that breaks it least."""
    violation, hours = found[:, 0], found[:, 3]
    keeps = violation <= max(PROMISED, float(violation.min()))
    return int(np.flatnonzero(keeps)[hours[keeps].argmin()])
