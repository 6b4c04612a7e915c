"""Tables A and B on one kind of traffic: every scheme at its best, on the same days.

In: days to measure, days to tune on. Out: `Compared`: by table and scheme, figures of each day; lag and workers of the
first day for pictures. A: every change pauses the job for 10 minutes, whoever makes it. B: ours and HPA scale live.
Next: `rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from springtide.domain.spec.online_job import OnlineRules
from springtide.planning.online.decision import ChangeEffect
from springtide_lab.reproduce.kale import auc, traffic, tuning, world
from springtide_lab.reproduce.kale.schemes import GRIDS
from springtide_lab.reproduce.kale.springtide_scheme import Clairvoyant, Ours, Outlooks
from springtide_lab.reproduce.kale.traffic import CAPACITY, MOST, TrafficDay
from springtide_lab.reproduce.kale.tuning import SLO_S, TunedScheme
from springtide_lab.reproduce.kale.world import TICK_S, Array, Counts

PAUSE_S = 600.0
"""Section 1: container 30 s, image 30 s, model 6 min, streams 2 min; "roughly 10 minutes"."""
START_S = 60.0
"""Live: container and image, while the others go on."""
A, B = ChangeEffect(PAUSE_S, START_S), ChangeEffect(0.0, START_S)
RULES = OnlineRules(most=MOST, slo_lag_s=SLO_S, pause_s=PAUSE_S, start_s=START_S)
LIVE = OnlineRules(most=MOST, slo_lag_s=SLO_S, pause_s=0.0, start_s=START_S)
OURS, CLAIRVOYANT, ADEQUATE = "ours", "clairvoyant", "Adequate"
LIVE_TOO = ("HPA", "Kale")
"""Schemes that are also shown with live scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeStory:
    """A day of one scheme, minute by minute."""

    traffic: Array
    workers: Counts
    lag_min: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kind of traffic."""

    name: str
    days: int
    figures: dict[tuple[str, str], Array] = field(default_factory=dict)
    """By table and scheme, [days, 4]: violation, lag in min, downtime in min, worker-hours."""
    auc: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    stories: dict[tuple[str, str], SchemeStory] = field(default_factory=dict)
    tuned: dict[tuple[str, str], TunedScheme] = field(default_factory=dict)
    on_tuning_days: dict[str, Array] = field(default_factory=dict)
    """Of ours, table A: the days on which the settings of the others were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKind:
    """A kind of traffic."""

    name: str
    measured: tuple[TrafficDay, ...]
    tuned_on: tuple[TrafficDay, ...]


def compare(kind: TrafficKind, curve: Sequence[float], *, most_settings: int | None = None) -> Compared:
    """Everything on one kind of traffic; `curve` is AUC by lag; of each grid at most so many settings."""
    outlooks = [Outlooks(day) for day in kind.measured]
    before = [Outlooks(day) for day in kind.tuned_on]
    found = Compared(name=kind.name, days=len(kind.measured))

    def note(table: str, scheme: str, done: world.OnlineRun) -> None:
        after, days = kind.measured[0].warm, range(len(kind.measured))
        found.figures[table, scheme] = tuning.figures(done, days, after)
        found.auc[table, scheme] = [auc.of(done.lag_s(day)[after:], curve) for day in days]
        minute = slice(after, None, round(60 / TICK_S))
        found.stories[table, scheme] = SchemeStory(
            traffic=kind.measured[0].rates[minute], workers=done.workers[minute, 0], lag_min=done.lag_s(0)[minute] / 60
        )

    for table, doing in (("A", A), ("B", B)):
        for scheme in GRIDS if table == "A" else LIVE_TOO:
            grid = thinned(GRIDS[scheme][1], most_settings)
            best = tuning.tune(scheme, kind.tuned_on, before, doing, grid=grid)
            found.tuned[table, scheme] = best
            note(table, scheme, tuning.run(scheme, [best.settings], kind.measured, outlooks, doing))
    note("A", ADEQUATE, adequate(kind.measured))
    note("A", OURS, ours(kind.measured, outlooks, RULES, A))
    note("A", CLAIRVOYANT, ours(kind.measured, [Clairvoyant(day) for day in kind.measured], RULES, A))
    note("B", OURS, ours(kind.measured, outlooks, LIVE, B))
    again = ours(kind.tuned_on, before, RULES, A)
    found.on_tuning_days["A"] = tuning.figures(again, range(len(kind.tuned_on)), kind.tuned_on[0].warm)
    return found


def ours(
    days: Sequence[TrafficDay], outlooks: Sequence[Outlooks | Clairvoyant], rules: OnlineRules, doing: ChangeEffect
) -> world.OnlineRun:
    rates = np.asarray([day.rates for day in days])
    return world.run(rates, Ours(outlooks, rules), workers=traffic.start(days), capacity=CAPACITY, doing=doing)


def adequate(days: Sequence[TrafficDay]) -> world.OnlineRun:
    rates = np.asarray([day.rates for day in days])
    workers = np.full(len(days), traffic.PEAK)
    return world.run(rates, lambda seen: workers, workers=workers, capacity=CAPACITY, doing=A)


def thinned(grid: Sequence[Any], most: int | None) -> list[Any]:
    if most is None or len(grid) <= most:
        return list(grid)
    return [grid[place] for place in np.linspace(0, len(grid) - 1, most).astype(int)]
