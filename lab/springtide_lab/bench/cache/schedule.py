"""Measure the time of a schedule, and its quality within a time budget.

In: streams of `id_streams`, 8 workers x 128 samples, 26 tables, caches of a tenth of the rows. Out: the time of LAIA
and plan on one thread; the transmissions of the adaptive allocation within a budget.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide.embedding.schedule import scheduler
from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams, plan_traffic
from springtide_lab.bench.core import harness, report

CACHE_SHARE = 0.1
"""Share of all rows that a worker's cache holds."""
WORKERS, BATCH = 8, 128
MOST_MS = 2.5
MOST_MORE = 1.11
"""Most transmissions of the adaptive allocation, relative to the static one: Fig. 13 of Herald's paper."""
STREAMS = ("zipf-1.05", "correlated")
SHARES = (0.75, 0.5, 0.25)
"""Time budgets of the adaptive allocation, as shares of the static allocation's time; planning time is extra."""

Chooser = Callable[[Sequence[scheduler.ScheduleTime]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """Measurements of one scheduler over the batches after the warm-up."""

    seconds: NDArray[np.float64]
    """Seconds of each schedule, for all parts together: reading, allocation, plans, snapshot."""
    stages: dict[str, float]
    """Median seconds of each stage."""
    transmissions: float
    """Mean number of transmitted rows per worker and step."""
    tables: NDArray[np.int64]
    """Number of tables that each allocation scored."""
    took: tuple[scheduler.ScheduleTime, ...]

    def ms(self, quantile: float) -> float:
        """Return a quantile of the schedules' times, in milliseconds."""
        return float(np.quantile(self.seconds, quantile) * 1e3)


def settings(stream: id_streams.IdStream, *, workers: int, **changed: object) -> scheduler.ScheduleSettings:
    """Return the settings of the paper's simulations: each cache holds a tenth of the rows."""
    return scheduler.ScheduleSettings(workers=workers, capacity_rows=int(stream.total_rows * CACHE_SHARE), **changed)  # type: ignore[arg-type]


def features(stream: id_streams.IdStream, *, batch: int) -> list[list[scheduler.FeatureIds]]:
    return [id_streams.features(ids) for ids in stream.batches(batch)]


def drive(
    batches: Sequence[Sequence[scheduler.FeatureIds]],
    chosen: scheduler.ScheduleSettings,
    *,
    warmup: int,
    choose: Chooser | None = None,
) -> Drive:
    """Schedule all batches. `choose` limits the tables that the next allocation scores, given the times so far."""
    own = scheduler.Scheduler(chosen)
    seconds, transmissions, history = list[float](), list[float](), list[scheduler.ScheduleTime]()
    stages: dict[str, list[float]] = {}
    for batch in batches:
        tables = choose(history) if choose else len(batch)
        began = time.perf_counter()
        done = own.schedule(batch, len(batch[0].ids), best_tables=tables)
        seconds.append(time.perf_counter() - began)
        history.append(scheduler.took(done.seconds, units=tables))
        for stage, each in done.seconds.items():
            stages.setdefault(stage, []).append(each)
        transmissions.append(plan_traffic.traffic(done.plans).transmissions / chosen.workers)
    return Drive(
        seconds=np.array(seconds[warmup:]),
        stages={stage: float(np.median(each[warmup:])) for stage, each in stages.items()},
        transmissions=float(np.mean(transmissions[warmup:])),
        tables=np.array([each.units for each in history[warmup:]]),
        took=tuple(history[warmup:]),
    )


def bench(options: Options) -> report.Result:
    steps, warmup = (12, 6) if options.quick else (400, 200)
    batch = 16 if options.quick else BATCH
    rows: list[report.Cells] = []
    ratios: list[float] = []
    static: dict[str, Drive] = {}
    for name in harness.track("streams", STREAMS):
        stream = id_streams.make(name, samples=steps * WORKERS * batch)
        batches = features(stream, batch=WORKERS * batch)
        base = settings(stream, workers=WORKERS)
        static[name] = drive(batches, base, warmup=warmup)
        rows.append(line(f"LAIA and plan, {name}", static[name], static[name]))
        for share in SHARES:
            given_s, kept = adaptive(batches, base, static[name], share=share, warmup=warmup)
            ratios.append(kept.transmissions / static[name].transmissions)
            inside = float(np.mean(kept.seconds <= given_s))
            what = f"  inside {1e3 * given_s:.2f} ms: {kept.tables.mean():.0f} tables, {inside:.0%} inside"
            rows.append(line(what, kept, static[name]))
    p50 = None if options.quick else static[STREAMS[0]].ms(0.5)
    return report.Result(
        goals=(
            report.goal("laia_plan_p50_ms", p50, target=MOST_MS, better="lower", why="quick"),
            report.goal("adaptive_transmissions", max(ratios), target=MOST_MORE, better="lower"),
        ),
        rounds=1,
        columns=("what", "p50, ms", "p99, ms", "sent a worker", "of LAIA"),
        rows=tuple(rows),
        notes=(
            f"{WORKERS} workers x {batch} samples, 26 tables, caches of 10%, one thread, {steps - warmup} steps after "
            f"{warmup}; sent: rows pulled, pushed and sent a worker and step",
        ),
        details={
            name: {"stages_ms": {stage: 1e3 * seconds for stage, seconds in one.stages.items()}}
            for name, one in static.items()
        },
    )


def line(what: str, kept: Drive, static: Drive) -> report.Cells:
    return (what, kept.ms(0.5), kept.ms(0.99), kept.transmissions, kept.transmissions / static.transmissions)


def adaptive(
    batches: Sequence[Sequence[scheduler.FeatureIds]],
    base: scheduler.ScheduleSettings,
    static: Drive,
    *,
    share: float,
    warmup: int,
) -> tuple[float, Drive]:
    """Return a budget that gives the allocation `share` of its usual time, and the schedules under that budget."""
    rest_s = scheduler.high(each.rest_s for each in static.took)
    allocate_s = scheduler.high(each.allocate_s for each in static.took)
    given_s = (rest_s + share * allocate_s) / (1 - scheduler.MARGIN)
    most = len(batches[0])
    kept = drive(
        batches, base, warmup=warmup, choose=lambda history: scheduler.units_within(given_s, history, most=most)
    )
    return given_s, kept
