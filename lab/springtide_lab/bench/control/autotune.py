"""Compare the shape that a job finds by its own planning with the best shape of a grid that is measured in full.

In: the job of `bench/core/quota_job.py` and a budget of cores. Out: `vs_best`, the throughput of the shape that the
job's planning chose, divided by the throughput of the best shape. The benchmark measures both again in alternating
rounds.
"""

import functools
import pathlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, product

from springtide import errors
from springtide.domain.core.shape import ROUNDING, ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.planning_config import PlanningConfig, PlanRules
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, quota_job, report
from springtide_lab.bench.core.quota_job import QuotaJob, Times, short

TARGET = 0.90
FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Extent and durations of the search."""

    bounds: ShapeBounds
    try_s: Times
    """Durations for each shape of the grid."""
    final_s: Times
    """Durations for each round of the finalists and of the final comparison."""
    rounds: int
    patience_s: float
    """Seconds that the planning loop has to settle."""


def grid(workers: int, servers: int, *, step: float, budget: float) -> ShapeBounds:
    """Return the bounds of a grid from one small worker and server up to these numbers; no role has more than one
    core."""
    small = Shape(workers=1, servers=1, worker_cpu=step, server_cpu=step)
    large = Shape(workers=workers, servers=servers, worker_cpu=1.0, server_cpu=1.0)
    return ShapeBounds(least=small, most=large, quota=ResourceBudget(cpu=budget, memory=float(1 << 40)), cpu_step=step)


FULL = Search(
    bounds=grid(3, 2, step=0.1, budget=1.6),
    try_s=Times(settle_s=1.0, measure_s=3.0, window_s=1.5),
    final_s=Times(settle_s=2.0, measure_s=6.0, window_s=3.0),
    rounds=4,
    patience_s=120.0,
)
QUICK = Search(
    bounds=grid(2, 1, step=0.25, budget=1.0),
    try_s=Times(settle_s=0.5, measure_s=1.5, window_s=0.75),
    final_s=Times(settle_s=0.5, measure_s=2.0, window_s=1.0),
    rounds=2,
    patience_s=90.0,
)


def tried(bounds: ShapeBounds) -> list[list[Shape]]:
    """Return the shapes that use the whole budget, grouped by their numbers of workers and servers.

    A shape uses the whole budget if the remaining cores are less than one more CPU step for its workers or servers.
    """
    step = bounds.cpu_step or 0.0
    found = []
    for w, p, a, b in product(bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus):
        shape = Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b)
        left = bounds.quota.cpu * (1 + ROUNDING) - shape.cpu
        full_worker = a >= bounds.most.worker_cpu or left < w * step
        full_server = b >= bounds.most.server_cpu or left < p * step
        if left >= 0 and full_worker and full_server:
            found.append(shape)
    return [list(some) for _, some in groupby(found, key=lambda one: (one.workers, one.servers))]


def bench(options: Options) -> report.Result:
    search = QUICK if options.quick else FULL
    with harness.scratch() as folder:
        quota_job.clicks(folder)
        speeds = tried_all(folder, search)
        auto = found_alone(folder, search)
        best = best_of(folder, search, speeds)
        shapes = {"auto": auto.shape, "best": best}
        rounds = alternated(folder, search, shapes, rounds=search.rounds, name="compared")
    return judge(search, speeds, auto, best, rounds)


def tried_all(folder: pathlib.Path, search: Search) -> dict[Shape, float]:
    """Return samples per second of every shape of the grid."""
    jobs = tried(search.bounds)
    speeds: dict[Shape, float] = {}
    for shapes in harness.track("all shapes", jobs):
        first = shapes[0]
        with QuotaJob(folder, first, name=f"tried-{first.workers}-{first.servers}") as job:
            job.trains(first.workers)
            for shape in shapes:
                speeds[shape] = speed_of(job, shape, search.try_s)
    return speeds


def speed_of(job: QuotaJob, shape: Shape, times: Times) -> float:
    """Run a job with this shape; return its samples per second."""
    job.become(shape)
    time.sleep(times.settle_s)
    began = time.time()
    time.sleep(times.measure_s)
    return job.rate(began, time.time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Outcome of the job that plans its own shape."""

    shape: Shape
    settled: bool
    seconds: float
    """Seconds until the planning loop settled, or until it ran out of time."""
    changes: tuple[str, ...]
    """Reasons of the plans that were carried out."""


def found_alone(folder: pathlib.Path, search: Search) -> Alone:
    """Run a job that plans its own shape. The job starts with one worker and one server that share half of the
    budget.
    """
    each = round(search.bounds.quota.cpu / 4, 2)
    first = Shape(workers=1, servers=1, worker_cpu=each, server_cpu=each)
    config = PlanningConfig(sample_s=10.0, sample_steps=100, between_changes_s=10.0, total_cpu=search.bounds.quota.cpu)
    rules = PlanRules(bounds=search.bounds, config=config)
    harness.say("a job that sizes itself")
    with QuotaJob(folder, first, name="auto", planning=rules) as job:
        job.trains(1)
        began = time.monotonic()
        status = job.cluster.status
        while not status.planning.settled and time.monotonic() - began < search.patience_s:
            time.sleep(0.2)
            status = job.cluster.status
            if job.cluster.over:
                raise errors.JobFailed(f"the job that plans for itself has ended: {status.why}")
        took = time.monotonic() - began
        shape = status.planning.shape or status.planning.target
        if shape is None:
            raise errors.JobFailed("the job that plans for itself reports no shape; check that planning is on")
        plans = [event for event in job.cluster.story if event["event"] == "plan"]
        changes = tuple(str(event["why"]) for event in plans if event.get("outcome") == "taken")
        return Alone(shape=plain(shape), settled=status.planning.settled, seconds=took, changes=changes)


def plain(shape: Shape) -> Shape:
    return Shape(workers=shape.workers, servers=shape.servers, worker_cpu=shape.worker_cpu, server_cpu=shape.server_cpu)


def best_of(folder: pathlib.Path, search: Search, speeds: dict[Shape, float]) -> Shape:
    """Measure the fastest shapes again, for longer; return the fastest of them."""
    finalists = sorted(speeds, key=lambda one: speeds[one], reverse=True)[:FINALISTS]
    shapes = {short(shape): shape for shape in finalists}
    found = alternated(folder, search, shapes, rounds=max(1, search.rounds // 2), name="finalists")
    return shapes[max(shapes, key=found.median)]


def alternated(
    folder: pathlib.Path, search: Search, shapes: Mapping[str, Shape], *, rounds: int, name: str
) -> harness.Rounds:
    """Measure one job that takes each of these shapes in turn."""
    first = next(iter(shapes.values()))
    with QuotaJob(folder, first, name=name) as job:
        job.trains(first.workers)
        speeds = {label: functools.partial(speed_of, job, shape, search.final_s) for label, shape in shapes.items()}
        return harness.alternate(speeds, rounds=rounds, warmup=0, label=name)


def judge(
    search: Search, speeds: dict[Shape, float], auto: Alone, best: Shape, rounds: harness.Rounds
) -> report.Result:
    ratio = rounds.ratio("auto", "best")
    ranked = sorted(speeds, key=lambda one: speeds[one], reverse=True)
    rows = [
        (f"found by itself: {short(auto.shape)}", rounds.median("auto")),
        (f"best: {short(best)}", rounds.median("best")),
    ]
    rows += [(f"tried: {short(one)}", speeds[one]) for one in (*ranked[:5], ranked[-1])]
    budget = search.bounds.quota.cpu
    return report.Result(
        goals=(
            report.goal(
                "vs_best",
                ratio if auto.settled else None,
                target=TARGET,
                why=f"the loop had not settled after {auto.seconds:.0f} s",
            ),
        ),
        rounds=rounds.count,
        columns=("shape", "samples/s"),
        rows=tuple(rows),
        notes=(
            f"{len(speeds)} shapes tried: all of up to {search.bounds.most.workers} workers and "
            f"{search.bounds.most.servers} servers, in steps of {search.bounds.cpu_step:g} cores, that use up "
            f"{budget:g} cores; the last line is the slowest shape",
            f"the loop {'settled' if auto.settled else 'had not settled'} after {auto.seconds:.0f} s and "
            f"{len(auto.changes)} changes",
            *(f"change: {change}" for change in auto.changes),
        ),
        details={"ratios": rounds.figures, "tried": {short(one): round(speed, 1) for one, speed in speeds.items()}},
    )
