"""Ours, and the same planner with tomorrow's paper: `planning.online.decision` asked for every lane.

In: days. Out: a `Scheme`. Forecasts are made from what was before, and corrected by what has come, as in the master of
a job. The clairvoyant one is told the traffic itself, by the same steps of 10 minutes.
"""

from collections.abc import Sequence

import numpy as np

from springtide.domain.spec.online_job import OnlineRules, OnlineView, TrafficOutlook
from springtide.planning.online import decision, seasonal
from springtide.planning.online.traffic import PastTraffic, RateForecast
from springtide_lab.reproduce.kale.traffic import CAPACITY, DAY, STEP_S, TrafficDay
from springtide_lab.reproduce.kale.world import TICK_S, Counts, Seen

TICKS = int(STEP_S / TICK_S)
BEFORE = round(seasonal.LOOKED_AT_S / STEP_S)
"""Steps before now that a forecast begins at the latest, so that its level is known."""
EVERY = 6
"""Steps between two forecasts: an hour."""


class Outlooks:
    """What the forecaster says at each step of a day, made when first asked for."""

    def __init__(self, day: TrafficDay) -> None:
        self._all = np.concatenate([day.past, day.steps])
        self._now = len(day.past)
        self._weights = seasonal.weigh(PastTraffic(step_s=STEP_S, values=day.past))
        self._said: dict[int, RateForecast] = {}
        self._made: dict[int, TrafficOutlook] = {}

    def at(self, step: int) -> TrafficOutlook:
        """The next 24 hours, from step `step` of the run on."""
        if step not in self._made:
            begin = self._now + step - step % EVERY - BEFORE
            if begin not in self._said:
                history = PastTraffic(step_s=STEP_S, values=self._all[:begin])
                self._said[begin] = seasonal.forecast(history, DAY + BEFORE + EVERY, weights=self._weights)
            self._made[step] = seasonal.outlook(self._said[begin], self._all[begin : self._now + step])
        return self._made[step]


class Clairvoyant:
    """What will really come; after the end of the run, as in its last step."""

    def __init__(self, day: TrafficDay) -> None:
        self._steps = day.steps

    def at(self, step: int) -> TrafficOutlook:
        """The next 24 hours."""
        ahead = self._steps[step : step + DAY]
        mean = tuple(np.concatenate([ahead, np.full(DAY - len(ahead), ahead[-1])]).tolist())
        return TrafficOutlook(step_s=STEP_S, mean=mean, high=mean, why="known")


class Ours:
    """Asks `decide` for each lane when it is due."""

    def __init__(self, outlook: Sequence[Outlooks | Clairvoyant], rules: OnlineRules) -> None:
        self._outlook, self._rules = outlook, rules
        self._planned_at = np.full(len(outlook), -np.inf)
        self._capacity = tuple(CAPACITY.tolist())

    def __call__(self, seen: Seen) -> Counts:
        """A `Scheme`."""
        wanted = seen.workers.copy()
        lag_s = seen.backlog / np.maximum(seen.arrivals, 1e-9)
        late = lag_s >= decision.WAITS * self._rules.slo_lag_s
        since = seen.at - self._planned_at
        asked: dict[int, OnlineView] = {}
        for lane in np.flatnonzero(seen.free & (late | (since >= self._rules.period_s))).tolist():
            view = self._view(seen, lane, float(lag_s[lane]))
            if decision.due(view, self._rules, planned_at=float(self._planned_at[lane])):
                asked[lane] = view
        if asked:
            for lane, said in zip(asked, decision.decide_all(list(asked.values()), self._rules), strict=True):
                self._planned_at[lane] = seen.at
                wanted[lane] = said.workers
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
