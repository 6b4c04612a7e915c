"""A cluster full of jobs with known coefficients, each measured in some configurations: what `bench plan` decides on.

In: a number of jobs and a seed. Out: a `ClusterView`. Jobs are of three kinds that differ in bounds, and each has
coefficients, needs and progress of its own; 30 cores a job, as 60,000 for 2,000. Or no two jobs have anything in
common: bounds, steps, quotas, needs to the byte and numbers of windows are all drawn (`unlike`).
"""

import numpy

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import GIB, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.core.stages import PlanningStage
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.plan.view import ClusterView, JobView, LaunchTime, RoleUse
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients

CORES_A_JOB, GIB_A_JOB = 30.0, 120.0
MEASURED = 8
"""Configurations of each job."""
WINDOWS, MOST_WINDOWS = 2, 40
"""Of each configuration; where no two jobs are alike, up to so many: 160 of a job on the average."""
NOISE = 0.03
USED = 0.55
"""Of their cores, by all workers and by all servers, in every window; the mean of what each role uses."""
NOW = 100_000.0
LEAST = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
KINDS = tuple(
    ShapeBounds(
        least=LEAST,
        most=Shape(
            workers=workers, servers=servers, worker_cpu=cpu, server_cpu=cpu, worker_memory=64 * GIB,
            server_memory=64 * GIB,
        ),
        quota=ResourceBudget(cpu=200.0, memory=2000.0 * GIB),
    )
    for workers, servers, cpu in ((64, 16, 32.0), (32, 8, 16.0), (16, 4, 8.0))
)  # fmt: skip


def cluster(jobs: int, *, seed: int, unlike: bool = False) -> ClusterView:
    """So many running jobs; the same seed gives the same ones."""
    drawn = numpy.random.default_rng(seed)
    launches = tuple(
        LaunchTime(kind=kind, cpu=cpu, memory=4 * GIB, seconds=float(drawn.uniform(10, 20) + cpu))
        for kind in (RoleKind.WORKER, RoleKind.SERVER)
        for cpu in (1.0, 4.0, 16.0)
    )
    capacity = ResourceBudget(cpu=CORES_A_JOB * jobs, memory=GIB_A_JOB * GIB * jobs)
    listed = tuple(one(f"job-{number}", drawn, unlike=unlike) for number in range(jobs))
    return ClusterView(now=NOW, capacity=capacity, jobs=listed, launches=launches)


def one(name: str, drawn: numpy.random.Generator, *, unlike: bool = False) -> JobView:
    """A job that has been through some shapes and runs in the last of them."""
    bounds = _bounds(drawn) if unlike else KINDS[int(drawn.integers(len(KINDS)))]
    facts = ModelFacts(
        dense_bytes=float(drawn.uniform(1e6, 5e7)), bandwidth=1e9, dim=float(drawn.integers(100, 1000)), batch=512
    )
    true = Coefficients(
        grad=float(drawn.uniform(5e-5, 1e-3)), upd=float(drawn.uniform(2e-3, 5e-2)), sync=float(drawn.uniform(0.5, 3)),
        emb=float(drawn.uniform(1e-9, 2e-7)), beta=float(drawn.uniform(1e-3, 2e-2)),
    )  # fmt: skip
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
        name=name, facts=facts, bounds=bounds, shape=shapes[-1], need=need, stage=PlanningStage.ADJUSTING,
        started_at=0.0, last_change_at=NOW - 1000, samples_total=total,
        samples_done=float(drawn.uniform(0.1, 0.8)) * total, profiles=profiles, uses=_uses(shapes[-1], drawn),
    )  # fmt: skip


def _bounds(drawn: numpy.random.Generator) -> ShapeBounds:
    """Bounds that no other job has."""
    sizes = numpy.round(drawn.uniform((0.25, 0.25, 4, 4), (1, 1, 32, 32)), 2).tolist()
    return ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=sizes[0], server_cpu=sizes[1]),
        most=Shape(
            workers=int(drawn.integers(9, 100)), servers=int(drawn.integers(4, 32)), worker_cpu=sizes[2],
            server_cpu=sizes[3], worker_memory=64 * GIB, server_memory=64 * GIB,
        ),
        quota=ResourceBudget(cpu=float(drawn.uniform(100, 200)), memory=float(drawn.uniform(1000, 2000)) * GIB),
    )  # fmt: skip


def _shape(drawn: numpy.random.Generator, bounds: ShapeBounds, need: MemoryNeed) -> Shape:
    servers = int(drawn.integers(2, bounds.most.servers + 1))
    return Shape(
        workers=int(drawn.integers(1, 9)), servers=servers, worker_cpu=float(drawn.choice([1.0, 2.0, 4.0])),
        server_cpu=float(drawn.choice([1.0, 2.0])), worker_memory=need.worker, server_memory=need.of_server(servers),
    )  # fmt: skip


def _profile(
    shape: Shape, true: Coefficients, facts: ModelFacts, drawn: numpy.random.Generator, *, at: float, steps: int = 500
) -> Profile:
    parts = [
        steps * float(term) * float(numpy.exp(NOISE * drawn.normal())) for term in equations.terms(true, facts, shape)
    ]
    timing = TimingSum(
        steps=steps, samples=steps * facts.batch, total_s=sum(parts), gradient_s=parts[0], update_s=parts[1],
        synchronization_s=parts[2], lookup_s=parts[3],
    )  # fmt: skip
    return Profile(
        shape=shape, batch=facts.batch, timing=timing, at=at,
        worker_cores=USED * shape.workers * shape.worker_cpu, server_cores=USED * shape.servers * shape.server_cpu,
    )  # fmt: skip


def _uses(shape: Shape, drawn: numpy.random.Generator) -> tuple[RoleUse, ...]:
    roles = [(RoleKind.WORKER, rank, shape.worker_cpu) for rank in range(shape.workers)]
    roles += [(RoleKind.SERVER, rank, shape.server_cpu) for rank in range(shape.servers)]
    return tuple(
        RoleUse(role=Role(kind, rank), cpu_used=float(drawn.uniform(0.3, 0.8)) * cpu, cpu=cpu)
        for kind, rank, cpu in roles
    )
