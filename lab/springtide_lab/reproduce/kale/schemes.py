"""The schemes that ours is compared with, each for many lanes: days under all settings that are tried.

In: outlooks of the days and settings by lane. Out: a `Scheme` (world.py). `autoscalers` decides; here is only how
often it is asked. `GRIDS` are the settings that `tuning` looks through.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from springtide.planning.online.capacity_model import CapacitySample as Measured
from springtide_lab.reproduce import autoscalers
from springtide_lab.reproduce.kale.springtide_scheme import TICKS, Outlooks
from springtide_lab.reproduce.kale.traffic import A10, CAPACITY, DAY, MOST, PEAK, STEP_S
from springtide_lab.reproduce.kale.world import TICK_S, Counts, Scheme, Seen

A_WORKER = float(CAPACITY[PEAK] / PEAK)
FEW = (1, 2, 3, 4)  # workers that Madu's straight line was measured with
MINUTE, REPLANNED = round(60 / TICK_S), round(6 * 3600 / TICK_S)


def _columns(settings: Sequence[Any]) -> list[Any]:
    return [np.asarray(column, dtype=float) for column in zip(*settings, strict=True)]


def by_hpa(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.HpaSettings]) -> Scheme:
    """Every 15 s."""
    it = autoscalers.Hpa(autoscalers.HpaSettings(*_columns(settings)), most=MOST, every_s=TICK_S)
    return lambda seen: it.wants(seen.workers, seen.utilization, seen.free)


def by_keda(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.KedaSettings]) -> Scheme:
    """Every 30 s."""
    it = autoscalers.Keda(autoscalers.KedaSettings(*_columns(settings)), most=MOST, every_s=2 * TICK_S)
    return lambda seen: seen.workers if seen.tick % 2 else it.wants(seen.workers, seen.backlog, seen.free)


def by_autopilot(_outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.AutopilotSettings]) -> Scheme:
    """Every 5 minutes, by the mean of what was used in them while workers trained."""
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
    per_worker = autoscalers.madu_slope([Measured(workers, A10(workers)) for workers in FEW])
    every = [round(one.period_s / TICK_S) for one in settings]
    wanted = np.zeros(len(settings), dtype=np.int64)

    def scheme(seen: Seen) -> Counts:
        if seen.tick % TICKS == 0:
            for lane, (outlook, one) in enumerate(zip(outlooks, settings, strict=True)):
                if seen.tick % every[lane] == 0:
                    said = outlook.at(seen.tick // TICKS)
                    wanted[lane] = autoscalers.madu_workers(said, one, per_worker=per_worker, most=MOST)
        return wanted

    return scheme


def by_kale(outlooks: Sequence[Outlooks], settings: Sequence[autoscalers.KaleSettings]) -> Scheme:
    """A plan every six hours; what it says, and lag, are looked at every minute."""
    plans = np.zeros((DAY * round(STEP_S / autoscalers.KALE_STEP_S), len(settings)), dtype=np.int64)
    lanes = np.arange(len(settings))
    lead, fallback_s = (np.asarray(column) for column in zip(*(one[-2:] for one in settings), strict=True))

    def scheme(seen: Seen) -> Counts:
        if seen.tick % MINUTE:
            return seen.workers
        if seen.tick % REPLANNED == 0:
            made: dict[Any, Counts] = {}
            for lane, (outlook, one) in enumerate(zip(outlooks, settings, strict=True)):
                workers = int(seen.workers[lane])
                key = id(outlook), one[:4], workers
                if key not in made:
                    said = outlook.at(seen.tick // TICKS)
                    made[key] = autoscalers.kale_plan(said, one, workers=workers, capacity=CAPACITY)
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
"""How each is made of settings, and the settings that are tried."""
