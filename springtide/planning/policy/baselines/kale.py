"""Pure. Kale as published: a forecast, the fewest workers that keep up, stabilization, and thresholds as a fallback.

In: a `TrafficOutlook` and capacity by workers. Out: a plan in steps of 5 minutes, and the reaction to unforeseen lag
(section 3.4). It uses planning/online/scaling/min_workers.py. Settings cover the points that the paper leaves open:
repeated stabilization, lead time of a change, quantile of the forecast, and the lag at which utilization decides.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.data.online_view import TrafficOutlook
from springtide.planning.online.scaling import min_workers
from springtide.planning.policy.baselines.hpa import Array, Counts

STEP_S = 300.0
"""Seconds per step: shorter than the shortest run that stabilization removes. With steps as long as that run,
stabilization would never act."""
BUSY = 0.8  # target utilization of the fallback


class KaleSettings(NamedTuple):
    """Settings of Kale."""

    change: int
    """Rho: minimum change in workers."""
    short_s: float
    """Tau: minimum seconds of a run."""
    repeated: bool
    """True if stabilization repeats until nothing changes."""
    upper: float
    """Position in the forecast's interval; the paper uses 0, the mean."""
    lead_s: float
    """Seconds by which a change begins before its step."""
    fallback_s: float
    """Lag in seconds above which thresholds decide."""


def plan(outlook: TrafficOutlook, settings: KaleSettings, *, workers: int, capacity: NDArray[np.float64]) -> Counts:
    """Return the workers per `STEP_S` from now on, for a job with `workers`."""
    times = round(outlook.step_s / STEP_S)
    at = (np.arange(len(outlook.mean) * times) + 0.5) / times - 0.5
    mean, high = np.asarray(outlook.mean), np.asarray(outlook.high)
    traffic = np.interp(at, np.arange(len(mean)), mean + settings.upper * (high - mean))
    best = int(capacity.argmax())
    fewest = np.minimum(np.searchsorted(capacity[: best + 1], traffic, side="right"), best)
    calm = (workers, *map(int, fewest))
    while True:
        calmer = min_workers.stabilize(calm, step_s=STEP_S, change=settings.change, short_s=settings.short_s)
        if calmer == calm or not settings.repeated:
            return np.asarray(calmer[1:])
        calm = calmer


def wants(
    planned: Counts, workers: Counts, lag_s: Array, utilization: Array, *, fallback_s: Array, most: int
) -> Counts:
    """Return the planned workers, or more where samples wait and workers are busy; arrays by lane."""
    more = np.ceil(workers * utilization / BUSY - 1e-9).astype(np.int64)
    wrong = (lag_s > fallback_s) & (utilization > BUSY)
    return np.where(wrong, np.minimum(np.maximum(planned, more), most), planned)
