"""Compare all schemes at their best settings on the same days of one kind of traffic: tables A and B.

Table A: every change pauses the job for 10 minutes. Table B: ours, HPA and Kale scale without a pause. The best setting
is the cheapest with at most 2.6% violation on the tuning days, or else the one with the least violation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from springtide.domain.spec.online_job import OnlineRules
from springtide.planning.online.decision import ChangeEffect
from springtide_lab.reproduce.kale import auc, world
from springtide_lab.reproduce.kale.schemes import GRIDS, Clairvoyant, Ours, Outlooks
from springtide_lab.reproduce.kale.world import CAPACITY, MOST, Array, TrafficDay

SLO_S = 1200.0
PROMISED = 0.026
"""Largest accepted violation as a share of time: the paper's violation rate."""
AT_ONCE = 150
"""Number of settings that are simulated together; with five days they take 300 MB."""
PAUSE_S = 600.0
"""Seconds of a pause. Section 1: container 30 s, image 30 s, model 6 min, streams 2 min; "roughly 10 minutes"."""
START_S = 60.0
"""Seconds to start container and image; with live scaling, the other workers continue during this time."""
A, B = ChangeEffect(PAUSE_S, START_S), ChangeEffect(0.0, START_S)
RULES = OnlineRules(most=MOST, slo_lag_s=SLO_S, pause_s=PAUSE_S, start_s=START_S)
LIVE = OnlineRules(most=MOST, slo_lag_s=SLO_S, pause_s=0.0, start_s=START_S)
OURS, CLAIRVOYANT, ADEQUATE = "ours", "clairvoyant", "Adequate"
LIVE_TOO = ("HPA", "Kale")
"""Schemes whose results the table also shows with live scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedScheme:
    """A scheme's best settings, and the figures of all settings."""

    scheme: str
    settings: Any
    tried: int
    figures: Array
    """Means over days, of shape [settings, 4]: violation, lag in min, downtime in min, worker-hours."""


def run(
    scheme: str, settings: Sequence[Any], days: Sequence[TrafficDay], outlooks: Sequence[Outlooks], doing: ChangeEffect
) -> world.OnlineRun:
    """Simulate each setting on each day. A lane is a pair of a day and a setting."""
    make = GRIDS[scheme][0]
    lanes = [(day, outlook, setting) for day, outlook in zip(days, outlooks, strict=True) for setting in settings]
    at = make([outlook for _, outlook, _ in lanes], [one for _, _, one in lanes])
    rates = np.asarray([day.rates for day, _, _ in lanes])
    return world.run(rates, at, workers=world.start([day for day, _, _ in lanes]), capacity=CAPACITY, doing=doing)


def figures(done: world.OnlineRun, lanes: Sequence[int], after: int) -> Array:
    """Return the four figures of each lane, of shape [lanes, 4], as in `TunedScheme`."""
    kept = [done.kept(lane, after=after, slo_s=SLO_S) for lane in lanes]
    return np.asarray([(one.violation, one.lag_min, one.down_min, one.worker_hours) for one in kept])


def tune(
    scheme: str, days: Sequence[TrafficDay], outlooks: Sequence[Outlooks], doing: ChangeEffect, *, grid: Sequence[Any]
) -> TunedScheme:
    parts = [grid[place : place + AT_ONCE] for place in range(0, len(grid), AT_ONCE)]
    found = np.concatenate([_means(run(scheme, part, days, outlooks, doing), days, len(part)) for part in parts])
    return TunedScheme(scheme=scheme, settings=grid[best(found)], tried=len(grid), figures=found)


def _means(done: world.OnlineRun, days: Sequence[TrafficDay], settings: int) -> Array:
    """Return the means over days, of shape [settings, 4]."""
    by_lane = figures(done, range(len(days) * settings), days[0].warm)
    return np.asarray(by_lane.reshape(len(days), settings, 4).mean(axis=0))


def best(found: Array) -> int:
    """Return the index of the cheapest setting that violates at most PROMISED, or else of the setting that violates
    least."""
    violation, hours = found[:, 0], found[:, 3]
    keeps = violation <= max(PROMISED, float(violation.min()))
    return int(np.flatnonzero(keeps)[hours[keeps].argmin()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Results of all schemes on one kind of traffic."""

    name: str
    days: int
    figures: dict[tuple[str, str], Array] = field(default_factory=dict)
    """Figures by table and scheme, of shape [days, 4]: violation, lag in min, downtime in min, worker-hours."""
    auc: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    tuned: dict[tuple[str, str], TunedScheme] = field(default_factory=dict)
    on_tuning_days: dict[str, Array] = field(default_factory=dict)
    """Our figures of table A on the days on which the settings of other schemes were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKind:
    """A kind of traffic, with days to measure and days to choose settings."""

    name: str
    measured: tuple[TrafficDay, ...]
    tuned_on: tuple[TrafficDay, ...]


def compare(kind: TrafficKind, curve: Sequence[float], *, most_settings: int | None = None) -> Compared:
    """Compare all schemes on one kind of traffic. `curve` is the AUC by lag; `most_settings` limits each grid."""
    outlooks = [Outlooks(day) for day in kind.measured]
    before = [Outlooks(day) for day in kind.tuned_on]
    found = Compared(name=kind.name, days=len(kind.measured))

    def note(table: str, scheme: str, done: world.OnlineRun) -> None:
        after, days = kind.measured[0].warm, range(len(kind.measured))
        found.figures[table, scheme] = figures(done, days, after)
        found.auc[table, scheme] = [auc.of(done.lag_s(day)[after:], curve) for day in days]

    for table, doing in (("A", A), ("B", B)):
        for scheme in GRIDS if table == "A" else LIVE_TOO:
            grid = thinned(GRIDS[scheme][1], most_settings)
            best = tune(scheme, kind.tuned_on, before, doing, grid=grid)
            found.tuned[table, scheme] = best
            note(table, scheme, run(scheme, [best.settings], kind.measured, outlooks, doing))
    note("A", ADEQUATE, adequate(kind.measured))
    note("A", OURS, ours(kind.measured, outlooks, RULES, A))
    note("A", CLAIRVOYANT, ours(kind.measured, [Clairvoyant(day) for day in kind.measured], RULES, A))
    note("B", OURS, ours(kind.measured, outlooks, LIVE, B))
    again = ours(kind.tuned_on, before, RULES, A)
    found.on_tuning_days["A"] = figures(again, range(len(kind.tuned_on)), kind.tuned_on[0].warm)
    return found


def ours(
    days: Sequence[TrafficDay], outlooks: Sequence[Outlooks | Clairvoyant], rules: OnlineRules, doing: ChangeEffect
) -> world.OnlineRun:
    rates = np.asarray([day.rates for day in days])
    return world.run(rates, Ours(outlooks, rules), workers=world.start(days), capacity=CAPACITY, doing=doing)


def adequate(days: Sequence[TrafficDay]) -> world.OnlineRun:
    rates = np.asarray([day.rates for day in days])
    workers = np.full(len(days), world.PEAK)
    return world.run(rates, lambda seen: workers, workers=workers, capacity=CAPACITY, doing=A)


def thinned(grid: Sequence[Any], most: int | None) -> list[Any]:
    if most is None or len(grid) <= most:
        return list(grid)
    return [grid[place] for place in np.linspace(0, len(grid) - 1, most).astype(int)]
