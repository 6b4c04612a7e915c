"""Measure the time and quality of one full decision for a cluster: fit models, list candidates, share out capacity.

In: jobs with known coefficients and noisy profiles. Out: CPU seconds of one decision for up to 10,000 jobs of 30 cores
each, once with similar jobs and once with jobs that all differ. For small clusters, also the gain of the decision
relative to the optimum.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import GIB, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.plan.view import ClusterView, JobView, LaunchTime, RoleUse, TrainingProgress
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.allocate import knapsack
from springtide.planning.allocate.knapsack import Floats, KnapsackOptions
from springtide.planning.candidates import pareto
from springtide.planning.lifecycle import warm_start
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients
from springtide.planning.policy import registry
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report

CORES_A_JOB, GIB_A_JOB = 30.0, 120.0
MEASURED = 8
"""Number of measured configurations of each job."""
WINDOWS, MOST_WINDOWS = 2, 40
"""Windows of each configuration, and the highest number of windows if all jobs differ (160 windows per job on
average).
"""
NOISE = 0.03
USED = 0.55
"""Share of their cores that all workers and all servers use in every window, as the mean of both roles."""
NOW = 100_000.0
LEAST = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
KINDS = tuple(
    ShapeBounds(
        least=LEAST,
        most=Shape(
            workers=workers,
            servers=servers,
            worker_cpu=cpu,
            server_cpu=cpu,
            worker_memory=64 * GIB,
            server_memory=64 * GIB,
        ),
        quota=ResourceBudget(cpu=200.0, memory=2000.0 * GIB),
    )
    for workers, servers, cpu in ((64, 16, 32.0), (32, 8, 16.0), (16, 4, 8.0))
)


def cluster(jobs: int, *, seed: int, unlike: bool = False) -> ClusterView:
    """Generate a cluster with `jobs` running jobs; the same seed gives the same jobs."""
    drawn = np.random.default_rng(seed)
    launches = tuple(
        LaunchTime(kind=kind, cpu=cpu, memory=4 * GIB, seconds=float(drawn.uniform(10, 20) + cpu))
        for kind in (RoleKind.WORKER, RoleKind.SERVER)
        for cpu in (1.0, 4.0, 16.0)
    )
    capacity = ResourceBudget(cpu=CORES_A_JOB * jobs, memory=GIB_A_JOB * GIB * jobs)
    listed = tuple(one_job(f"job-{number}", drawn, unlike=unlike) for number in range(jobs))
    return ClusterView(now=NOW, capacity=capacity, jobs=listed, launches=launches)


def one_job(name: str, drawn: np.random.Generator, *, unlike: bool = False) -> JobView:
    """Generate a job that has had several shapes and now runs in the last of them."""
    bounds = _bounds(drawn) if unlike else KINDS[int(drawn.integers(len(KINDS)))]
    facts = ModelFacts(
        dense_bytes=float(drawn.uniform(1e6, 5e7)), bandwidth=1e9, dim=float(drawn.integers(100, 1000)), batch=512
    )
    true = Coefficients(
        grad=float(drawn.uniform(5e-5, 1e-3)),
        upd=float(drawn.uniform(2e-3, 5e-2)),
        sync=float(drawn.uniform(0.5, 3)),
        emb=float(drawn.uniform(1e-9, 2e-7)),
        beta=float(drawn.uniform(1e-3, 2e-2)),
    )
    need = MemoryNeed(worker=int(drawn.integers(2, 6)) * GIB, server=GIB, rows=int(drawn.integers(4, 48)) * GIB)
    if unlike:
        need = MemoryNeed(
            worker=int(drawn.integers(2 * GIB, 6 * GIB)),
            server=int(drawn.integers(1, 2 * GIB)),
            rows=int(drawn.integers(4 * GIB, 48 * GIB)),
        )
    windows = int(drawn.integers(1, MOST_WINDOWS + 1)) if unlike else WINDOWS
    shapes = [_shape(drawn, bounds, need) for _ in range(MEASURED)]
    profiles = tuple(
        _profile(shape, true, facts, drawn, at=NOW - 1000 * (MEASURED - place) + 600 / windows * window)
        for place, shape in enumerate(shapes)
        for window in range(1, windows + 1)
    )
    total = float(drawn.uniform(1e8, 1e9))
    return JobView(
        name=name,
        facts=facts,
        bounds=bounds,
        shape=shapes[-1],
        need=need,
        stage=PlanningStage.ADJUSTING,
        progress=TrainingProgress(
            started_at=0.0,
            last_change_at=NOW - 1000,
            samples_total=total,
            samples_done=float(drawn.uniform(0.1, 0.8)) * total,
        ),
        profiles=profiles,
        uses=_uses(shapes[-1], drawn),
    )


def _bounds(drawn: np.random.Generator) -> ShapeBounds:
    sizes = np.round(drawn.uniform((0.25, 0.25, 4, 4), (1, 1, 32, 32)), 2).tolist()
    return ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=sizes[0], server_cpu=sizes[1]),
        most=Shape(
            workers=int(drawn.integers(9, 100)),
            servers=int(drawn.integers(4, 32)),
            worker_cpu=sizes[2],
            server_cpu=sizes[3],
            worker_memory=64 * GIB,
            server_memory=64 * GIB,
        ),
        quota=ResourceBudget(cpu=float(drawn.uniform(100, 200)), memory=float(drawn.uniform(1000, 2000)) * GIB),
    )


def _shape(drawn: np.random.Generator, bounds: ShapeBounds, need: MemoryNeed) -> Shape:
    servers = int(drawn.integers(2, bounds.most.servers + 1))
    return Shape(
        workers=int(drawn.integers(1, 9)),
        servers=servers,
        worker_cpu=float(drawn.choice([1.0, 2.0, 4.0])),
        server_cpu=float(drawn.choice([1.0, 2.0])),
        worker_memory=need.worker,
        server_memory=need.of_server(servers),
    )


def _profile(
    shape: Shape, true: Coefficients, facts: ModelFacts, drawn: np.random.Generator, *, at: float, steps: int = 500
) -> Profile:
    parts = [
        steps * float(term) * float(np.exp(NOISE * drawn.normal())) for term in equations.terms(true, facts, shape)
    ]
    timing = TimingSum(
        steps=steps,
        samples=steps * facts.batch,
        total_s=sum(parts),
        gradient_s=parts[0],
        update_s=parts[1],
        synchronization_s=parts[2],
        lookup_s=parts[3],
    )
    return Profile(
        shape=shape,
        batch=facts.batch,
        timing=timing,
        at=at,
        worker_cores=USED * shape.workers * shape.worker_cpu,
        server_cores=USED * shape.servers * shape.server_cpu,
    )


def _uses(shape: Shape, drawn: np.random.Generator) -> tuple[RoleUse, ...]:
    roles = [(RoleKind.WORKER, rank, shape.worker_cpu) for rank in range(shape.workers)]
    roles += [(RoleKind.SERVER, rank, shape.server_cpu) for rank in range(shape.servers)]
    return tuple(
        RoleUse(role=Role(kind, rank), cpu_used=float(drawn.uniform(0.3, 0.8)) * cpu, cpu=cpu)
        for kind, rank, cpu in roles
    )


SECONDS = 10.0
"""Time limit of one exact solution in seconds. A solution usually takes milliseconds."""


def options_of(rows: Sequence[tuple[Floats, Floats, Floats, Floats]], scale: Floats) -> KnapsackOptions:
    """Build the options from rows of (value, cost, cpu, memory), each sorted by cost."""
    width = max((len(row[0]) for row in rows), default=1)
    shape = (len(rows), width)
    value, cost, cpu, memory = np.full(shape, -np.inf), *(np.full(shape, np.inf) for _ in range(3))
    for at, row in enumerate(rows):
        for array, part in zip((value, cost, cpu, memory), row, strict=True):
            array[at, : len(part)] = part
    gpu = np.where(np.isfinite(cpu), 0.0, np.inf)
    return KnapsackOptions(value=value, scale=scale, cost=cost, takes=np.stack((cpu, memory, gpu)))


def instance(generator: np.random.Generator) -> tuple[KnapsackOptions, ResourceBudget]:
    """Draw a few jobs that together want more than the capacity, each with a front of diminishing gains."""
    rows, scale = [], []
    for _ in range(int(generator.integers(2, 10))):
        count = int(generator.integers(2, 12))
        cpu = np.cumsum(generator.integers(1, 16, size=count)).astype(float)
        memory = np.cumsum(generator.integers(1, 16, size=count)).astype(float)
        throughput = cpu / (cpu + generator.uniform(5, 100)) * generator.uniform(10, 1000)
        order = np.sort(throughput * generator.uniform(0.9, 1.1, size=count))
        rows.append((order - order[0], cpu + memory / 8, cpu, memory))
        scale.append(-2.5 * np.log(generator.uniform(600, 6000)))
    options = options_of(rows, np.array(scale))
    least, most = (options.used(np.array([at(len(row[0])) for row in rows])) for at in (lambda _: 0, lambda n: n - 1))
    part = generator.uniform(0.1, 0.9, size=2)
    cpu_limit, memory_limit = (
        low + (high - low) * float(p) for low, high, p in zip(least[:2], most[:2], part, strict=True)
    )
    return options, ResourceBudget(cpu=cpu_limit, memory=memory_limit)


def allotment_quality(generator: np.random.Generator, *, instances: int) -> float:
    """Return the chosen value relative to its upper bound: the mean over `instances` random clusters."""
    chosen = []
    for _ in range(instances):
        options, limits = instance(generator)
        best = knapsack.solve(options, limits, seconds=SECONDS)
        found = knapsack.allot(options, limits, exact_seconds=SECONDS, exact_options=4_000)
        assert best is not None and found is not None, "a limit lies between the least and the most that jobs can use"
        most = options.total(best)
        chosen.append(options.total(found[0]) / most if most > 0 else 1.0)
    return float(np.mean(chosen))


JOBS = 2000
MOST_S = 2.0
LEAST_QUALITY = 0.99
SIZES = (10, 30, 100, 300, 1000, JOBS, 5000, 10_000)
QUICK_SIZES = (10, 20, 40)


def bench(options: Options) -> report.Result:
    sizes, rounds = (QUICK_SIZES, 1) if options.quick else (SIZES, 3)
    instances = 20 if options.quick else 200
    decision_seconds(cluster(10, seed=0))  # the first decision imports modules, so it is not measured
    cases = [*((jobs, False) for jobs in sizes), (QUICK_SIZES[-1] if options.quick else JOBS, True)]
    took: dict[tuple[int, bool], float] = {}
    for jobs, unlike in harness.track("decisions", cases):
        seeds = range(rounds if jobs <= JOBS else 1)
        took[jobs, unlike] = statistics.median(
            decision_seconds(cluster(jobs, seed=seed, unlike=unlike)) for seed in seeds
        )
    quality = allotment_quality(np.random.default_rng(7), instances=instances)
    whole = took.get((JOBS, False))
    return report.Result(
        goals=(
            report.goal("seconds_2000_jobs", whole, target=MOST_S, better="lower", why="quick"),
            report.goal("quality_vs_exact", quality, target=LEAST_QUALITY),
        ),
        rounds=rounds,
        columns=("jobs", "decision, s"),
        rows=tuple(
            (f"{jobs:,}{', no two alike' if unlike else ''}", seconds) for (jobs, unlike), seconds in took.items()
        ),
        notes=(
            "processor seconds of one process",
            f"quality: gain relative to the optimum, in {instances} random small clusters",
        ),
    )


def decision_seconds(view: ClusterView) -> float:
    """Return the CPU seconds of one decision, without caches of earlier decisions."""
    policy = registry.load("springtide")
    pareto.sides.cache_clear()
    warm_start.known.cache_clear()
    began = time.process_time()
    policy(view, PlanningConfig())
    return time.process_time() - began
