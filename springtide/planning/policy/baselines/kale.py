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
"""Finer than the shortest run that stabilization takes out: with steps as long it would never act."""
BUSY = 0.8  # utilization that the fallback aims at


class KaleSettings(NamedTuple):
    """Settings of Kale."""

    change: int
    """Rho: workers."""
    short_s: float
    """Tau."""
    repeated: bool
    """Whether stabilization goes on until nothing changes."""
    upper: float
    """Where in the forecast's interval is planned; the paper's is 0, its mean."""
    lead_s: float
    """How long before a step its change begins."""
    fallback_s: float
    """Lag from which on thresholds decide."""


def plan(outlook: TrafficOutlook, settings: KaleSettings, *, workers: int, capacity: NDArray[np.float64]) -> Counts:
    """Workers by `STEP_S` from now on, for a job that has `workers`."""
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
    """What the plan says for now, or more where samples wait and workers are busy; all by lane."""
    more = np.ceil(workers * utilization / BUSY - 1e-9).astype(np.int64)
    wrong = (lag_s > fallback_s) & (utilization > BUSY)
    return np.where(wrong, np.minimum(np.maximum(planned, more), most), planned)
