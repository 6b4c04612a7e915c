"""How long a schedule takes, and how good it is when it may take only so long.

In: streams of `id_streams`, 8 workers x 128 samples, 26 tables, caches of a tenth. Out: time of LAIA and plan on one
thread; the adaptive allocation inside a budget; ours at several budgets; growth with workers, batch and tables.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from springtide.embedding.schedule import scheduler
from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams, plan_traffic
from springtide_lab.bench.core import growth, harness, report

CACHE_SHARE = 0.1
"""Of all rows, what a worker's cache holds."""

Chooser = Callable[[Sequence[scheduler.ScheduleTime]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One scheduler over the batches after the warm-up."""

    seconds: NDArray[np.float64]
    """Each whole schedule, by the clock on the wall: reading, allocation, plans, snapshot."""
    cpu_seconds: NDArray[np.float64]
    """The same in time of the calling thread."""
    stages: dict[str, float]
    """Medians."""
    transmissions: float
    """A worker and step."""
    reward: float
    """Largest push plus largest pull, a step."""
    imbalance: float
    """That, over what it were if all workers had the mean."""
    units: NDArray[np.int64]
    """Tables scored or sweeps made."""
    took: tuple[scheduler.ScheduleTime, ...]

    def ms(self, quantile: float) -> float:
        """Milliseconds that this share of schedules stay below."""
        return float(np.quantile(self.seconds, quantile) * 1e3)


def settings(stream: id_streams.IdStream, *, workers: int, **changed: object) -> scheduler.ScheduleSettings:
    """The setting of the paper's simulations: a cache of a tenth of the rows."""
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
    """Schedule all batches; `choose` says how many units the next allocation may have, given those so far."""
    own = scheduler.Scheduler(chosen)
    searches = chosen.policy not in ("laia", "random", "contiguous")
    seconds, cpu, counted, history = [], [], [], list[scheduler.ScheduleTime]()
    stages: dict[str, list[float]] = {}
    for batch in batches:
        units = choose(history) if choose else 0 if searches else len(batch)
        began, began_cpu = time.perf_counter(), time.thread_time()
        done = own.schedule(
            batch, len(batch[0].ids), best_tables=None if searches else units, effort=units if searches else 0
        )
        seconds.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
        history.append(scheduler.took(done.seconds, units=units))
        for stage, each in done.seconds.items():
            stages.setdefault(stage, []).append(each)
        counted.append(plan_traffic.traffic(done.plans))
    after = counted[warmup:]
    rewards = [now.reward(before) for before, now in zip(counted[warmup - 1 :], after, strict=False)]
    mean = sum(each.per_worker for each in after) / len(after)
    even = sum(
        (sum(b.gradients) + sum(n.write_backs) + sum(n.sent) + sum(n.pulls) + sum(n.received)) / chosen.workers
        for b, n in zip(counted[warmup - 1 :], after, strict=False)
    ) / len(after)
    return Drive(
        seconds=np.array(seconds[warmup:]),
        cpu_seconds=np.array(cpu[warmup:]),
        stages={stage: float(np.median(each[warmup:])) for stage, each in stages.items()},
        transmissions=mean,
        reward=sum(rewards) / len(rewards),
        imbalance=sum(rewards) / len(rewards) / even,
        units=np.array([each.units for each in history[warmup:]]),
        took=tuple(history[warmup:]),
    )


WORKERS, BATCH = 8, 128
MOST_MS = 2.5
MOST_MORE = 1.11
"""Transmissions of the adaptive allocation over those of the static one: the paper's Fig. 13."""
STREAMS = ("zipf-1.05", "correlated")
BUDGETS_MS = (2.5, 8.0, 20.0)
MOST_SWEEPS = 200
OURS = "anneal"
SHARES = (0.75, 0.5, 0.25)
"""Of the time that the static allocation takes, what the adaptive one is given beside the plan."""
SWEEPS: Mapping[str, Sequence[int]] = {
    "workers": (2, 4, 8, 16, 32, 80),
    "batch": (32, 64, 128, 256, 512),
    "tables": (6, 13, 26, 52),
}
QUICK_SWEEPS: Mapping[str, Sequence[int]] = {"workers": (2, 3, 4), "batch": (8, 16, 32), "tables": (3, 6, 12)}


def bench(options: Options) -> report.Result:
    steps, warmup = (12, 6) if options.quick else (400, 200)
    batch = 16 if options.quick else BATCH
    rows: list[report.Cells] = []
    ratios: dict[str, float] = {}
    details: dict[str, object] = {}
    p50 = None
    for name in STREAMS:
        stream = id_streams.make(name, samples=steps * WORKERS * batch)
        batches = features(stream, batch=WORKERS * batch)
        base = settings(stream, workers=WORKERS)
        static = drive(batches, base, warmup=warmup)
        rows.append(line(f"LAIA and plan, {name}", static, static))
        details[name] = details_of(static)
        if name == STREAMS[0]:
            p50 = static.ms(0.5)
            rows.append(line("  on two threads", drive(batches, replace(base, threads=2), warmup=warmup), static))
        for share in SHARES:
            given_s, kept = adaptive(batches, base, static, share=share, warmup=warmup)
            ratios[f"{name} {share:g}"] = kept.transmissions / static.transmissions
            inside = float(np.mean(kept.seconds <= given_s))
            what = f"  inside {1e3 * given_s:.2f} ms: {kept.units.mean():.0f} tables, {inside:.0%} inside"
            rows.append(line(what, kept, static))
        rows += ours(batches, base, static, warmup=warmup)
    curves = grow(QUICK_SWEEPS if options.quick else SWEEPS, batch=batch, steps=6 if options.quick else 30)
    picture = options.folder / "schedule-growth.png"
    growth.plot(curves, picture, cost="schedule, ms")
    worst = max(ratios.values())
    p50, why = (None, "quick") if options.quick else (p50, "")
    return report.Result(
        goals=(
            report.goal("laia_plan_p50_ms", p50, target=MOST_MS, better="lower", why=why),
            report.goal("adaptive_transmissions", worst, target=MOST_MORE, better="lower"),
        ),
        rounds=1,
        columns=("what", "p50, ms", "p99, ms", "sent a worker", "of LAIA", "reward"),
        rows=(
            *rows,
            *(
                (f"{c.what} {size:g}", 1e3 * s, None, None, None, None)
                for c in curves
                for size, s in zip(c.sizes, c.seconds, strict=True)
            ),
        ),
        notes=(
            f"{WORKERS} workers x {batch} samples, 26 tables, caches of 10%, one thread, {steps - warmup} steps after "
            f"{warmup}; sent: rows pulled, pushed and sent a worker and step; reward: largest push plus largest pull",
            "grows as " + ", ".join(f"{c.what}^{c.exponent:.2f}" for c in curves) + f"; picture: {picture}",
        ),
        details={
            **details,
            "adaptive": ratios,
            "growth": {c.what: {"sizes": c.sizes, "seconds": c.seconds} for c in curves},
        },
    )


def details_of(static: Drive) -> dict[str, object]:
    return {
        "stages_ms": {stage: 1e3 * seconds for stage, seconds in static.stages.items()},
        "cpu_p50_ms": 1e3 * float(np.median(static.cpu_seconds)),
        "reward": static.reward,
        "imbalance": static.imbalance,
        "transmissions": static.transmissions,
    }


def line(what: str, kept: Drive, static: Drive) -> report.Cells:
    return (
        what,
        kept.ms(0.5),
        kept.ms(0.99),
        kept.transmissions,
        kept.transmissions / static.transmissions,
        kept.reward,
    )


def adaptive(
    batches: Sequence[Sequence[scheduler.FeatureIds]],
    base: scheduler.ScheduleSettings,
    static: Drive,
    *,
    share: float,
    warmup: int,
) -> tuple[float, Drive]:
    """A budget that leaves the allocation a share of the time it would take, and the schedules that kept to it."""
    rest_s = scheduler.high(each.rest_s for each in static.took)
    allocate_s = scheduler.high(each.allocate_s for each in static.took)
    given_s = (rest_s + share * allocate_s) / (1 - scheduler.MARGIN)
    most = len(batches[0])
    kept = drive(
        batches, base, warmup=warmup, choose=lambda history: scheduler.units_within(given_s, history, most=most)
    )
    return given_s, kept


def ours(
    batches: Sequence[Sequence[scheduler.FeatureIds]],
    base: scheduler.ScheduleSettings,
    static: Drive,
    *,
    warmup: int,
) -> list[report.Cells]:
    """Springtide's own policy at several budgets, with as many sweeps as fit."""
    if OURS not in scheduler.POLICIES:
        return []
    rows = []
    for given_ms in BUDGETS_MS:

        def sweeps(history: Sequence[scheduler.ScheduleTime], given_s: float = given_ms / 1e3) -> int:
            return scheduler.units_within(given_s, history, most=MOST_SWEEPS, least=1) if history else 1

        kept = drive(batches, replace(base, policy=OURS), warmup=warmup, choose=sweeps)
        rows.append(line(f"  ours within {given_ms:g} ms: {kept.units.mean():.0f} sweeps", kept, static))
    return rows


def grow(sweeps: Mapping[str, Sequence[int]], *, batch: int, steps: int) -> list[growth.Curve]:
    """Median seconds of a schedule as one size varies."""
    base = {"workers": WORKERS, "batch": batch, "tables": 26}
    curves = []
    with harness.bar("growth", total=sum(map(len, sweeps.values()))) as done:
        for what, sizes in sweeps.items():
            seconds = []
            for size in sizes:
                seconds.append(median_s(**{**base, what: size}, steps=steps))
                done()
            curves.append(growth.Curve(what=what, sizes=sizes, seconds=seconds))
    return curves


def median_s(*, workers: int, batch: int, tables: int, steps: int) -> float:
    """Processor time of a schedule, after a third of the steps; beyond 26 tables, those of two streams side by side."""
    drawn = [
        id_streams.make("zipf-1.05", samples=steps * workers * batch, seed=seed) for seed in range(1 + (tables > 26))
    ]
    ids = np.concatenate([each.ids for each in drawn], axis=1)[:, :: max(1, 26 // tables)][:, :tables]
    stream = replace(drawn[0], ids=np.ascontiguousarray(ids))
    chosen = settings(stream, workers=workers)
    kept = drive(features(stream, batch=workers * batch), chosen, warmup=max(1, steps // 3))
    return float(np.median(kept.cpu_seconds))
