"""Implement the autoscalers that Kale compares, by their published rules: HPA, KEDA, Autopilot, Madu and Kale.

In: measurements of each lane (one day under one setting), as arrays. Out: wanted workers. `schemes` in kale/ sets how
often each autoscaler decides.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide.domain.spec.online_job import TrafficOutlook
from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample

# Kubernetes' Horizontal Pod Autoscaler, asked every 15 s. Within 10% of the target nothing changes. A step up adds at
# most four workers or doubles them. For scale-down, the highest recommendation of the window counts; for scale-up with
# `up_s` set, the lowest.
Array = NDArray[np.float64]
Counts = NDArray[np.int64]
TOLERANCE = 0.1
MORE, TIMES = 4, 2  # a step up adds at most MORE workers or multiplies them by TIMES, whichever is larger
BUCKET = 4  # recommendations per bucket, stored as highest and lowest: one minute


class HpaSettings(NamedTuple):
    """Settings of the cluster's owner; each may be an array by lane."""

    target: Array
    """Target utilization."""
    down_s: Array
    """Stabilization window for scale-down; Kubernetes' default is 300 s."""
    up_s: Array
    """Stabilization window for scale-up; Kubernetes' default is 0 s."""


def recommend(workers: Counts, ratio: Array, *, most: int) -> Counts:
    """Return the proportional recommendation with tolerance and step limit. `ratio` is usage / target."""
    asked = np.ceil(ratio * workers - 1e-9).astype(np.int64)
    asked = np.where(np.abs(ratio - 1) <= TOLERANCE, workers, asked)
    return np.clip(np.minimum(asked, np.maximum(workers + MORE, workers * TIMES)), 1, most)


class Windows:
    """Stabilization windows: the highest recent recommendation counts for scale-down, the lowest for scale-up."""

    def __init__(self, down_s: Array, up_s: Array, *, every_s: float) -> None:
        bucket_s = every_s * BUCKET
        self._down, self._up = (np.ceil(one / bucket_s).astype(int) for one in (down_s, up_s))
        buckets = int(max(self._down.max(), self._up.max())) + 1
        self._high = np.zeros((buckets, len(down_s)), dtype=np.int64)
        self._low = np.full((buckets, len(down_s)), np.iinfo(np.int64).max)
        self._asked = 0

    def settle(self, workers: Counts, asked: Counts) -> Counts:
        bucket, fresh = divmod(self._asked, BUCKET)
        here = bucket % len(self._high)
        if fresh == 0:
            self._high[here], self._low[here] = asked, asked
        else:
            np.maximum(self._high[here], asked, out=self._high[here])
            np.minimum(self._low[here], asked, out=self._low[here])
        self._asked += 1
        wanted = np.where(asked == workers, workers, asked)
        for windows, kept, less, side in (
            (self._down, self._high, asked < workers, np.max),
            (self._up, self._low, asked > workers, np.min),
        ):
            for window in np.unique(windows[less]):
                lanes = np.flatnonzero(less & (windows == window))
                back = (bucket - np.arange(min(window + 1, bucket + 1))) % len(kept)
                wanted[lanes] = side(kept[np.ix_(back, lanes)], axis=0) if window else asked[lanes]
        return np.where(
            asked < workers,
            np.minimum(wanted, workers),
            np.where(asked > workers, np.maximum(wanted, workers), workers),
        )


class Hpa:
    """Autoscaler that follows a ratio, by default utilization / target, within stabilization windows."""

    def __init__(self, settings: "HpaSettings | KedaSettings", *, most: int, every_s: float) -> None:
        self._target, self._most = settings[0], most
        self._windows = Windows(settings.down_s, settings.up_s, every_s=every_s)

    def wants(self, workers: Counts, measured: Array, free: NDArray[np.bool_]) -> Counts:
        """Return the wanted workers. Lanes that are not `free` have a change in progress, so their workers are not
        measured.
        """
        asked = recommend(workers, self._ratio(workers, measured), most=self._most)
        return self._windows.settle(workers, np.where(free, asked, workers))

    def _ratio(self, workers: Counts, utilization: Array) -> Array:
        return utilization / self._target


# KEDA on a Kafka topic, asked every 30 s: lag / threshold workers, under HPA's rules. Lag is capped at partitions x
# threshold. The autoscaler never scales to zero, because an online job without workers would be late as soon as samples
# arrive.
PARTITIONS = 800  # partitions of a topic, as in section 4.1 of Kale


class KedaSettings(NamedTuple):
    """Settings of KEDA, as arrays by lane."""

    threshold: Array
    """Waiting samples allowed per worker."""
    down_s: Array
    up_s: Array


class Keda(Hpa):
    """Autoscaler that follows lag."""

    def _ratio(self, workers: Counts, backlog: Array) -> Array:
        return np.minimum(backlog, PARTITIONS * self._target) / (self._target * workers)


# Google's Autopilot, horizontal: a percentile of recent usage / target, every 5 minutes. For scale-down the highest
# request of the last hour counts, and the excess halves every hour.
AUTOPILOT_EVERY_S = 300.0
DEFERRED_S = 3600.0


class AutopilotSettings(NamedTuple):
    """Settings of Autopilot, as arrays by lane."""

    target: Array
    percentile: Array
    """Percentile of usage in the window: 95, or 100 for the maximum."""
    window_s: Array


class Autopilot:
    """Autoscaler that follows recent usage."""

    def __init__(self, settings: AutopilotSettings, *, most: int) -> None:
        self._settings, self._most = settings, most
        self._window = np.maximum(np.round(settings.window_s / AUTOPILOT_EVERY_S).astype(int), 1)
        self._used: list[Array] = []
        self._asked: list[Array] = []
        self._held: Array = np.zeros(0)

    def wants(self, workers: Counts, used: Array, free: NDArray[np.bool_]) -> Counts:
        """Return the wanted workers. `used` is workers x utilization, the mean of the last 5 minutes of training."""
        self._used.append(used)
        asked = np.zeros(len(workers))
        for window in np.unique(self._window):
            lanes = np.flatnonzero(self._window == window)
            seen = np.sort(np.asarray([one[lanes] for one in self._used[-window:]]), axis=0)
            place = np.ceil(self._settings.percentile[lanes] / 100 * len(seen)).astype(int) - 1
            asked[lanes] = seen[place, np.arange(len(lanes))] / self._settings.target[lanes]
        self._asked.append(asked)
        highest = np.max(self._asked[-round(DEFERRED_S / AUTOPILOT_EVERY_S) :], axis=0)
        wanted = np.ceil(highest - 1e-9)
        held = self._held if len(self._held) else workers.astype(float)
        self._held = np.where(wanted < held, wanted + (held - wanted) * 0.5 ** (AUTOPILOT_EVERY_S / DEFERRED_S), wanted)
        wanted = np.clip(np.ceil(self._held - 1e-9), 1, self._most)
        return np.where(free, wanted, workers).astype(np.int64)


# Madu, as Kale describes it: the upper end of the forecast / the throughput of one worker.
class MaduSettings(NamedTuple):
    """Settings of Madu."""

    upper: float
    """Position in the forecast's interval: 0 is the mean, 1 the high end."""
    period_s: float
    """Seconds between two plans. Each plan covers the highest traffic of its own period and of the scaling before
    it.
    """


def madu_slope(seen: Sequence[CapacitySample]) -> float:
    """Return samples per second per worker, by least squares through the origin."""
    return sum(one.workers * one.throughput for one in seen) / sum(one.workers**2 for one in seen)


def madu_workers(outlook: TrafficOutlook, settings: MaduSettings, *, per_worker: float, most: int) -> int:
    steps = max(1, round(settings.period_s / outlook.step_s)) + 1
    pairs = zip(outlook.mean[:steps], outlook.high[:steps], strict=True)
    highest = max(mean + settings.upper * (high - mean) for mean, high in pairs)
    return min(max(1, math.ceil(highest / per_worker)), most)


# Kale: a forecast, the fewest workers that keep up, stabilization, and thresholds as a fallback (section 3.4). Settings
# cover what the paper leaves open: repeated stabilization, lead time, quantile of the forecast, lag of the fallback.
KALE_STEP_S = 300.0
"""Seconds per step, fewer than the shortest run that stabilization removes. With steps as long as that run,
stabilization would never act."""
KALE_BUSY = 0.8  # target utilization of the fallback


class KaleSettings(NamedTuple):
    """Settings of Kale."""

    change: int
    """Rho: minimum change in workers."""
    short_s: float
    """Tau: shortest run, in seconds."""
    repeated: bool
    """True if stabilization repeats until nothing changes."""
    upper: float
    """Position in the forecast's interval; the paper uses 0, the mean."""
    lead_s: float
    """Seconds by which a change begins before its step."""
    fallback_s: float
    """Lag in seconds above which thresholds decide."""


def kale_plan(
    outlook: TrafficOutlook, settings: KaleSettings, *, workers: int, capacity: NDArray[np.float64]
) -> Counts:
    """Return the workers per `KALE_STEP_S` from now on, for a job with `workers`."""
    times = round(outlook.step_s / KALE_STEP_S)
    at = (np.arange(len(outlook.mean) * times) + 0.5) / times - 0.5
    mean, high = np.asarray(outlook.mean), np.asarray(outlook.high)
    traffic = np.interp(at, np.arange(len(mean)), mean + settings.upper * (high - mean))
    best = int(capacity.argmax())
    fewest = np.minimum(np.searchsorted(capacity[: best + 1], traffic, side="right"), best)
    calm = (workers, *map(int, fewest))
    while True:
        calmer = stabilize(calm, step_s=KALE_STEP_S, change=settings.change, short_s=settings.short_s)
        if calmer == calm or not settings.repeated:
            return np.asarray(calmer[1:])
        calm = calmer


def kale_workers(
    planned: Counts, workers: Counts, lag_s: Array, utilization: Array, *, fallback_s: Array, most: int
) -> Counts:
    """Return the planned workers, or more where samples wait and workers are busy; arrays by lane."""
    more = np.ceil(workers * utilization / KALE_BUSY - 1e-9).astype(np.int64)
    wrong = (lag_s > fallback_s) & (utilization > KALE_BUSY)
    return np.where(wrong, np.minimum(np.maximum(planned, more), most), planned)


class WorkerNeed(NamedTuple):
    """Number of workers that a traffic needs."""

    workers: int
    enough: bool
    """True if the lane's workers keep up. Otherwise no number of workers keeps up, and these workers fall behind
    least.
    """


def least(curve: CapacityCurve, traffic: float, *, most: int, fewest: int = 1) -> WorkerNeed:
    """Return the minimum number of workers that train faster than samples arrive (Eqn 10)."""
    peak = max(fewest, curve.peak(most))
    for workers in range(fewest, peak + 1):
        if curve(workers) > traffic:
            return WorkerNeed(workers, True)
    return WorkerNeed(peak, False)


def stabilize(workers: Sequence[int], *, step_s: float, change: int = 1, short_s: float = 600.0) -> tuple[int, ...]:
    """Remove short runs of one worker count, from the first run on.

    A run is removed if it begins with a change of at least `change` and lasts less than `short_s`; it takes the
    larger neighbouring count. The first run has no predecessor, and the last run may continue beyond the horizon, so
    both runs stay.
    """
    runs = [(number, len(list(same))) for number, same in groupby(workers)]
    calm: list[tuple[int, int]] = runs[:1]
    for place in range(1, len(runs)):
        number, length = runs[place]
        before = calm[-1][0]
        if place + 1 < len(runs) and abs(number - before) >= change and length * step_s < short_s:
            number = max(before, runs[place + 1][0])
        if number == before:
            calm[-1] = (before, calm[-1][1] + length)
        else:
            calm.append((number, length))
    return tuple(number for number, length in calm for _ in range(length))
