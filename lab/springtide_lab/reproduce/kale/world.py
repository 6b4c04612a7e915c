"""An online job in virtual time: many days at once, side by side, in steps of 15 seconds.

In: traffic by step of each lane (one day under one setting of a scheme), what so many workers train, what a change
does, and a scheme that says how many workers there should be. Out: `Run`: trained samples, workers and pauses by
step, and `SloSums` (planning/online/slo_metrics.py) of each lane. Next: `tuning`, `rows`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.planning.online.decision import ChangeEffect
from springtide.planning.online.slo_metrics import SloSums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
TICK_S = 15.0
"""As often as HPA looks."""


class Seen(NamedTuple):
    """What a scheme may look at, of each lane."""

    tick: int
    workers: Counts
    backlog: Array
    """Samples."""
    arrivals: Array
    """Samples a second in the last step."""
    utilization: Array
    """Of workers, in the last step in which they trained."""
    free: NDArray[np.bool_]
    """No change is under way."""
    trained: Array
    """Samples since the beginning."""

    @property
    def at(self) -> float:
        """Seconds since the beginning."""
        return self.tick * TICK_S


Scheme = Callable[[Seen], Counts]
"""How many workers each lane should have; where a change is under way it is not listened to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRun:
    """What became of the lanes."""

    arrived: Array
    """[lanes, steps + 1] samples since the beginning."""
    trained: Array
    """[steps + 1, lanes]"""
    workers: Counts
    """[steps, lanes]"""
    down: Array
    """[steps, lanes] part of a step in which nothing was trained because of a change."""

    def lag_s(self, lane: int) -> Array:
        """How long the oldest sample that is not trained has waited, at the end of each step."""
        arrived, trained = self.arrived[lane], self.trained[1:, lane]
        ends = np.arange(len(arrived)) * TICK_S
        came = np.interp(trained, arrived + np.arange(len(arrived)) * 1e-9, ends)
        return np.where(trained >= arrived[1:] - 1e-6, 0.0, np.maximum(ends[1:] - came, 0.0))

    def kept(self, lane: int, *, after: int, slo_s: float) -> SloSums:
        """The four figures, of the steps from `after` on."""
        return measure(
            self.lag_s(lane)[after:],
            self.workers[after:, lane].astype(float),
            self.down[after:, lane] > 0,
            step_s=TICK_S,
            slo_s=slo_s,
        )


def measure(
    lag_s: Array,
    workers: Array,
    down: NDArray[np.bool_],
    *,
    step_s: float,
    slo_s: float,
) -> SloSums:
    """Return the sums of a whole run in equal steps."""
    return SloSums(
        seconds=len(lag_s) * step_s,
        violated_s=float(np.count_nonzero(lag_s > slo_s)) * step_s,
        lag_s2=float(lag_s.sum()) * step_s,
        down_s=float(np.count_nonzero(down)) * step_s,
        worker_s=float(workers.sum()) * step_s,
    )


def run(traffic: Array, scheme: Scheme, *, workers: Counts, capacity: Array, doing: ChangeEffect) -> OnlineRun:
    """All lanes from the first step to the last. `traffic` is [lanes, steps], `capacity[w]` is samples a second."""
    lanes, steps = traffic.shape
    arrived = np.concatenate([np.zeros((lanes, 1)), np.cumsum(traffic * TICK_S, axis=1)], axis=1)
    by_step = np.ascontiguousarray(arrived.T)
    rates = np.ascontiguousarray(traffic.T)
    live = doing.pause_s == 0
    lasts = doing.start_s if live else doing.pause_s
    workers = workers.copy()
    before, under_way = workers.copy(), np.zeros(lanes)
    trained, utilization = np.zeros(lanes), np.full(lanes, 0.8)
    all_trained, all_workers = np.zeros((steps + 1, lanes)), np.zeros((steps, lanes), dtype=np.int64)
    down = np.zeros((steps, lanes))
    for step in range(steps):
        free = under_way <= 0
        seen = Seen(step, workers, by_step[step] - trained, rates[max(step - 1, 0)], utilization, free, trained)
        wanted = scheme(seen)
        change = free & (wanted != workers)
        if change.any():
            before = np.where(change, workers, before)
            workers = np.where(change, wanted, workers)
            under_way = np.where(change, lasts, under_way)
        busy = np.minimum(under_way, TICK_S)
        can = (TICK_S - busy) * capacity[workers]
        if live:
            can += busy * capacity[np.minimum(before, workers)]
        else:
            down[step] = busy / TICK_S
        done = np.minimum(can, by_step[step + 1] - trained)
        utilization = np.where(can > 0, done / np.maximum(can, 1e-9), utilization)
        under_way = np.maximum(under_way - TICK_S, 0)
        trained = trained + done
        all_trained[step + 1], all_workers[step] = trained, workers
    return OnlineRun(arrived=arrived, trained=all_trained, workers=all_workers, down=down)
