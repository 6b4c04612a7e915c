"""Define schemes that choose the workers of each lane: ours, our planner with perfect forecasts, and other autoscalers.

In: days, or outlooks and settings by lane. Out: a `Scheme` (world.py). `planning` makes our decisions, and
`autoscalers` those of the other schemes. This module sets how often each scheme decides. `GRIDS` has the settings that
`comparison` tries.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from springtide.domain.spec.online_job import OnlineRules, OnlineView, TrafficOutlook
from springtide.planning.online import decision, seasonal
from springtide.planning.online.capacity_model import CapacitySample
from springtide.planning.online.traffic import PastTraffic, RateForecast
from springtide_lab.reproduce import autoscalers
from springtide_lab.reproduce.kale.world import (
    A10,
    CAPACITY,
    DAY,
    MOST,
    PEAK,
    STEP_S,
    TICK_S,
    Counts,
    Scheme,
    Seen,
    TrafficDay,
)

TICKS = int(STEP_S / TICK_S)
BEFORE = round(seasonal.LOOKED_AT_S / STEP_S)
"""Steps by which a forecast begins before now, so that its level can be compared with recent traffic."""
EVERY = 6
"""Steps between two forecasts: an hour."""
A_WORKER = float(CAPACITY[PEAK] / PEAK)
FEW = (1, 2, 3, 4)  # numbers of workers for the fit of Madu's straight line
MINUTE, REPLANNED = round(60 / TICK_S), round(6 * 3600 / TICK_S)


class Outlooks:
    """Forecasts at each step of a day, computed at the first request."""

    def __init__(self, day: TrafficDay) -> None:
        self._all = np.concatenate([day.past, day.steps])
        self._now = len(day.past)
        self._weights = seasonal.weigh(PastTraffic(step_s=STEP_S, values=day.past))
        self._said: dict[int, RateForecast] = {}
        self._made: dict[int, TrafficOutlook] = {}

    def at(self, step: int) -> TrafficOutlook:
        """Return the forecast of the 24 hours from step `step` of the run on."""
        if step not in self._made:
            begin = self._now + step - step % EVERY - BEFORE
            if begin not in self._said:
                history = PastTraffic(step_s=STEP_S, values=self._all[:begin])
                self._said[begin] = seasonal.forecast(history, DAY + BEFORE + EVERY, weights=self._weights)
            self._made[step] = seasonal.outlook(self._said[begin], self._all[begin : self._now + step])
        return self._made[step]


class Clairvoyant:
    """Perfect forecasts: the real traffic; after the end of the run, the traffic of its last step."""

    def __init__(self, day: TrafficDay) -> None:
        self._steps = day.steps

    def at(self, step: int) -> TrafficOutlook:
        ahead = self._steps[step : step + DAY]
        mean = tuple(np.concatenate([ahead, np.full(DAY - len(ahead), ahead[-1])]).tolist())
        return TrafficOutlook(step_s=STEP_S, mean=mean, high=mean, why="known")


class Ours:
    """Our scheme: calls `decide` for each lane when a decision is due."""

    def __init__(self, outlook: Sequence[Outlooks | Clairvoyant], rules: OnlineRules) -> None:
        self._outlook, self._rules = outlook, rules
        self._planned_at = np.full(len(outlook), -np.inf)
        self._capacity = tuple(CAPACITY.tolist())

    def __call__(self, seen: Seen) -> Counts:
        """Return the wanted workers of each lane, as a `Scheme` does."""
        wanted = seen.workers.copy()
        lag_s = seen.backlog / np.maximum(seen.arrivals, 1e-9)
        late = lag_s >= decision.WAITS * self._rules.slo_lag_s
        since = seen.at - self._planned_at
        for lane in np.flatnonzero(seen.free & (late | (since >= self._rules.period_s))).tolist():
            view = self._view(seen, lane, float(lag_s[lane]))
            if decision.due(view, self._rules, planned_at=float(self._planned_at[lane])):
                self._planned_at[lane] = seen.at
                wanted[lane] = decision.decide(view, self._rules).workers
        return wanted

    def _view(self, seen: Seen, lane: int, lag_s: float) -> OnlineView:
        return OnlineView(
            at=seen.at,
            workers=int(seen.workers[lane]),
            backlog=float(seen.backlog[lane]),
            lag_s=lag_s,
            arrivals=float(seen.arrivals[lane]),
            utilization=float(seen.utilization[lane]),
            outlook=self._outlook[lane].at(seen.tick // TICKS),
            capacity=self._capacity,
        )


def _columns(settings: Sequence[Any]) -> list[Any]:
    return [np.asarray(column, dtype=float) for column in zip(*settings, strict=True)]


def by_hpa(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.HpaSettings]) -> Scheme:
    it = autoscalers.Hpa(autoscalers.HpaSettings(*_columns(settings)), most=MOST, every_s=TICK_S)
    return lambda seen: it.wants(seen.workers, seen.utilization, seen.free)


def by_keda(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.KedaSettings]) -> Scheme:
    it = autoscalers.Keda(autoscalers.KedaSettings(*_columns(settings)), most=MOST, every_s=2 * TICK_S)
    return lambda seen: seen.workers if seen.tick % 2 else it.wants(seen.workers, seen.backlog, seen.free)


def by_autopilot(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.AutopilotSettings]) -> Scheme:
    """Return Autopilot's scheme, which decides every 5 minutes by the mean usage while workers trained."""
    it = autoscalers.Autopilot(autoscalers.AutopilotSettings(*_columns(settings)), most=MOST)
    every = round(autoscalers.AUTOPILOT_EVERY_S / TICK_S)
    used, times = np.zeros(len(settings)), np.zeros(len(settings))

    def scheme(seen: Seen) -> Counts:
        nonlocal used, times
        used, times = used + seen.free * seen.workers * seen.utilization, times + seen.free
        if (seen.tick + 1) % every:
            return seen.workers
        mean = np.where(times > 0, used / np.maximum(times, 1), seen.workers * seen.utilization)
        used, times = np.zeros(len(used)), np.zeros(len(used))
        return it.wants(seen.workers, mean, seen.free)

    return scheme


def by_madu(outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.MaduSettings]) -> Scheme:
    per_worker = autoscalers.madu_slope([CapacitySample(workers, A10(workers)) for workers in FEW])
    every = [round(setting.period_s / TICK_S) for setting in settings]
    wanted = np.zeros(len(settings), dtype=np.int64)

    def scheme(seen: Seen) -> Counts:
        if seen.tick % TICKS == 0:
            for lane, (outlook, setting) in enumerate(zip(outlooks, settings, strict=True)):
                if seen.tick % every[lane] == 0:
                    said = outlook.at(seen.tick // TICKS)
                    wanted[lane] = autoscalers.madu_workers(said, setting, per_worker=per_worker, most=MOST)
        return wanted

    return scheme


def by_kale(outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.KaleSettings]) -> Scheme:
    """Return Kale's scheme, which plans every six hours, and follows the plan and the lag every minute."""
    plans = np.zeros((DAY * round(STEP_S / autoscalers.KALE_STEP_S), len(settings)), dtype=np.int64)
    lanes = np.arange(len(settings))
    lead, fallback_s = (np.asarray(column) for column in zip(*(setting[-2:] for setting in settings), strict=True))

    def scheme(seen: Seen) -> Counts:
        if seen.tick % MINUTE:
            return seen.workers
        if seen.tick % REPLANNED == 0:
            made: dict[Any, Counts] = {}
            for lane, (outlook, setting) in enumerate(zip(outlooks, settings, strict=True)):
                workers = int(seen.workers[lane])
                key = id(outlook), setting[:4], workers
                if key not in made:
                    said = outlook.at(seen.tick // TICKS)
                    made[key] = autoscalers.kale_plan(said, setting, workers=workers, capacity=CAPACITY)
                plans[:, lane] = made[key][: len(plans)]
        since_s = seen.tick % REPLANNED * TICK_S
        planned = plans[((since_s + lead) // autoscalers.KALE_STEP_S).astype(int), lanes]
        lag_s = seen.backlog / np.maximum(seen.arrivals, 1e-9)
        return autoscalers.kale_workers(
            planned, seen.workers, lag_s, seen.utilization, fallback_s=fallback_s, most=MOST
        )

    return scheme


def _grid(make: Callable[..., Any], *values: Sequence[float]) -> list[Any]:
    return [make(*one) for one in itertools.product(*values)]


GRIDS: dict[str, tuple[Callable[[Sequence[Outlooks], Sequence[Any]], Scheme], list[Any]]] = {
    "HPA": (
        by_hpa,
        _grid(
            autoscalers.HpaSettings,
            (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9),
            (60.0, 300.0, 900.0, 3600.0),
            (0.0, 600.0, 1200.0, 1800.0, 2400.0, 3600.0),
        ),
    ),
    "KEDA": (
        by_keda,
        _grid(
            autoscalers.KedaSettings,
            (A_WORKER * 10, A_WORKER * 30, A_WORKER * 60, A_WORKER * 180, A_WORKER * 600),
            (300.0, 1800.0, 3600.0, 7200.0),
            (0.0, 600.0),
        ),
    ),
    "Autopilot": (
        by_autopilot,
        _grid(
            autoscalers.AutopilotSettings,
            (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
            (95.0, 100.0),
            (1800.0, 3600.0, 7200.0, 14400.0, 43_200.0, 86_400.0),
        ),
    ),
    "Madu": (by_madu, _grid(autoscalers.MaduSettings, (0.0, 0.5, 1.0, 2.0), (600.0, 1800.0, 3600.0, 7200.0))),
    "Kale": (
        by_kale,
        _grid(
            autoscalers.KaleSettings,
            (1,),
            (600.0, 1800.0, 3600.0, 7200.0),
            (False, True),
            (0.0, 1.0, 2.0, 4.0),
            (0.0, 600.0),
            (600.0, 1200.0),
        ),
    ),
}
"""For each scheme: the function that builds it from settings, and the settings to try."""
