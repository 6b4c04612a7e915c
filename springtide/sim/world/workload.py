"""Draws a random workload: jobs with resource requests like those of the users in the papers.

In: a `ClusterWorld`, a number of jobs, a seed. Out: `TrueJob`s in order of arrival. The same seed always gives the same
jobs.
Next: `simulation`.
"""

import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from springtide import errors, file_input
from springtide.domain.core import validation
from springtide.domain.core.shape import GIB, Shape
from springtide.file_input import InputFile
from springtide.planning.perf_model.equations import Coefficients
from springtide.sim.world import parameters
from springtide.sim.world import world as world_model
from springtide.sim.world.parameters import DAY_S, MODELS, ClusterWorld, PaperModel
from springtide.sim.world.world import JobFaults, JobMemory, TrueJob

SIZES = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
"""Numbers of cores that users request."""
MOST_WORKERS = 60
COMMON = "widedeep"


def jobs(world: ClusterWorld, count: int, seed: int, *, earlier: bool = False) -> tuple[TrueJob, ...]:
    """Draw jobs with Poisson arrivals and recurring users, over as many days as `count` jobs need.

    `earlier` draws different jobs of the same users, from earlier days.
    """
    when, which = (4, 5) if earlier else (1, 3)
    random = np.random.default_rng([seed, when])
    length = count / world.jobs.jobs_a_day * DAY_S
    arrivals = np.sort(random.uniform(0.0, length, size=count))
    kinds = _kinds(world, np.random.default_rng([seed, 2]))
    drawn = (np.random.default_rng([seed, which, index]) for index in range(count))
    return tuple(
        _job(world, index, at, kinds, random)
        for index, (at, random) in enumerate(zip(arrivals.tolist(), drawn, strict=True))
    )


def one(
    world: ClusterWorld, model: PaperModel, *, requested: Shape, name: str = "job", steps: int | None = None
) -> TrueJob:
    """Return one job of a test bed: the unmodified model, no faults, and enough memory."""
    return TrueJob(
        name=name,
        user="tester",
        kind=model.name,
        model=model.name,
        arrives_at=0.0,
        samples=float(world.jobs.batch * (steps or world.jobs.testbed_steps)),
        facts=model.facts,
        coefficients=model.coefficients,
        worker_core_s=model.worker_core_s,
        server_core_s=model.server_core_s,
        requested=requested,
        memory=JobMemory(
            table_bytes=8.0 * GIB,
            table_at_start=world.memory.table_at_start,
            worker_bytes=world.memory.worker_gib * GIB,
            server_base_bytes=world.memory.server_base_gib * GIB,
        ),
    )


def _kinds(world: ClusterWorld, random: np.random.Generator) -> list[TrueJob]:
    """Draw the few kinds of jobs of each user: a model, widths, tables and an amount of data."""
    others = [name for name in MODELS if name != COMMON]
    found = []
    for user in range(world.jobs.users):
        for number in range(world.jobs.families_a_user):
            common = random.random() < world.jobs.common_share
            model = MODELS[COMMON if common else others[int(random.integers(len(others)))]]
            kind = one(world, model, requested=model.tuned, name=f"user-{user}/{number}")
            steps = world.jobs.steps_mean * math.exp(
                random.normal(-0.5 * world.jobs.steps_spread**2, world.jobs.steps_spread)
            )
            kind = replace(
                jittered(kind, random, world.jobs.family_spread),
                user=f"user-{user}",
                kind=kind.name,
                samples=max(steps, 1000.0) * world.jobs.batch,
                memory=replace(
                    kind.memory,
                    table_bytes=GIB * world.memory.table_gib * math.exp(random.normal(0.0, world.memory.table_spread)),
                ),
            )
            found.append(kind)
    return found


def jittered(job: TrueJob, random: np.random.Generator, spread: float) -> TrueJob:
    """Vary the size of a job, by one random factor for computation and one for communication."""
    compute, move = (math.exp(spread_log) for spread_log in random.normal(0.0, spread, size=2))
    known = job.coefficients
    coefficients = Coefficients(
        grad=known.grad * compute, upd=known.upd * move, sync=known.sync * move, emb=known.emb * move, beta=known.beta
    )
    return replace(
        job,
        coefficients=coefficients,
        worker_core_s=job.worker_core_s * compute,
        server_core_s=job.server_core_s * move,
    )


def _job(world: ClusterWorld, index: int, at: float, kinds: list[TrueJob], random: np.random.Generator) -> TrueJob:
    # the square makes some kinds of jobs far more frequent than others
    kind = kinds[int(len(kinds) * random.random() ** 2)]
    job = jittered(kind, random, world.jobs.job_spread)
    job = replace(
        job,
        name=f"job-{index}",
        arrives_at=at,
        samples=job.samples * math.exp(random.normal(0.0, 0.2)),
        faults=JobFaults(
            hot=world.faults.hot_load if random.random() < world.faults.hot_share else 1.0,
            straggles_at=random.random() if random.random() < world.faults.straggler_share else math.inf,
            straggler_speed=world.faults.straggler_speed,
            starved=bool(random.random() < world.requests.starved_share),
        ),
        seed=int(random.integers(1 << 31)) * 8,
    )
    return replace(job, requested=_request(world, job, random))


def _request(world: ClusterWorld, job: TrueJob, random: np.random.Generator) -> Shape:
    """Draw the user's request: usually far more than the job needs, and sometimes too little."""
    tuned = MODELS[job.model].tuned
    scale = (
        math.exp(random.normal(0.0, world.requests.user_workers_spread))
        * (job.samples / job.facts.batch / world.jobs.steps_mean) ** 0.5
    )
    workers = min(
        max(1, round(world.requests.user_workers * scale * (1.0 if tuned.workers > 8 else 0.6))), MOST_WORKERS
    )
    servers = max(1, round(workers * tuned.servers / tuned.workers * math.exp(random.normal(0.0, 0.4))))
    # requests include the memory for tables, because users know that the tables are large
    servers = max(servers, math.ceil(job.memory.table_bytes / (0.4 * world.size.node_memory * GIB)))
    ample = Shape(workers=workers, servers=servers, worker_cpu=tuned.worker_cpu, server_cpu=32.0)
    used = world_model.speed(job, ample)
    more_worker, more_server = world.requests.cpu_factor * np.exp(random.normal(0.0, world.requests.cpu_spread, size=2))
    worker_cpu = _size(max(used.worker_cores / workers, 0.5) * max(more_worker, 1.0))
    server_cpu = _size(max(used.server_cores / servers, 0.5) * max(more_server, 1.0))
    if job.faults.starved:
        server_cpu = max(0.25, used.server_cores / servers * random.uniform(0.25, 0.6))
    need = world_model.server_bytes(job, servers, job.samples, job.faults.hot)
    memory = world.requests.memory_factor * np.exp(random.normal(0.0, world.requests.memory_spread, size=2))
    return Shape(
        workers=workers,
        servers=servers,
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        worker_memory=_bytes(job.memory.worker_bytes * max(float(memory[0]), 1.0), world),
        server_memory=_bytes(need * float(memory[1]), world),
    )


def _size(cores: float) -> float:
    return float(next((size for size in SIZES if size >= cores), SIZES[-1]))


def _bytes(wanted: float, world: ClusterWorld) -> int:
    return int(min(wanted, world.size.node_memory * GIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """Resources that the user of a job in a trace file requested. Missing fields have the values of the model's tuned
    shape.
    """

    workers: int | None = None
    servers: int | None = None
    worker_cpu: float | None = None
    server_cpu: float | None = None
    worker_gib: float | None = None
    server_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob(TracedRequest):
    """Job in a trace file. Missing fields have the values of drawn jobs."""

    model: str
    name: str = ""
    user: str = "user"
    kind: str = ""
    at: float = 0.0
    """Arrival time, in seconds after the start of the trace."""
    steps: int | None = None
    table_gib: float = 8.0
    """Size of the tables at the end, in GiB."""
    hot: float = 1.0
    """Load of the hottest server, as a multiple of the mean load of servers."""
    straggles_at: float | None = None
    """When a worker becomes a straggler, as a share of the job."""
    seed: int | None = None

    def __post_init__(self) -> None:
        validation.choice(self.model, "model", tuple(MODELS))
        validation.check_range(self, "steps", "workers", "servers", "hot", least=1)
        validation.check_range(self, "worker_cpu", "server_cpu", above=0, unit="cores")
        validation.check_range(self, "at", "worker_gib", "server_gib", "table_gib", "straggles_at", "seed", least=0)
        for name, most in (("workers", 500), ("servers", 500), ("straggles_at", 1.0)):
            if (getattr(self, name) or 0) > most:
                raise errors.BadInput(f"{name} {getattr(self, name):g}: must be at most {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTrace:
    """Contents of a trace file."""

    world: Mapping[str, float] = field(default_factory=dict)
    """Constants of the simulated cluster that the trace changes, by name."""
    jobs: tuple[TracedJob, ...]


ROOMS = ("nodes", "node_cpu", "node_memory", "job_cpu")
"""Constants that must not be 0, because no job could begin."""


def read(path: pathlib.Path) -> tuple[ClusterWorld, tuple[TrueJob, ...]]:
    """Read a trace file. Return the constants, and the jobs in the order of their arrival."""
    text = file_input.read(path, what="a trace in YAML or JSON", hint="`springtide simulate --example` prints one")
    place = InputFile(path, text)
    trace = place.build(WorkloadTrace, file_input.parse(path, text))
    for name, value in trace.world.items():
        if name not in parameters.CONSTANTS:
            raise place.fail(("world", name), str(errors.UnknownName("parameter", name, parameters.CONSTANTS)))
        if not 0 <= value < math.inf or (name in ROOMS and not value):
            raise place.fail(("world", name), f"{value:g}: must be {'above 0' if name in ROOMS else '0 or more'}")
    world = ClusterWorld().changed(**trace.world)
    jobs = {job.name: job for job in (_filled(world, index, job) for index, job in enumerate(trace.jobs))}
    if not jobs or len(jobs) < len(trace.jobs):
        raise place.fail(
            ("jobs",), f"{len(trace.jobs)} jobs of {len(jobs)} names; expected at least one job, and unique names"
        )
    return world, tuple(sorted(jobs.values(), key=lambda job: job.arrives_at))


def _filled(world: ClusterWorld, index: int, job: TracedJob) -> TrueJob:
    model = parameters.model(job.model)
    shape = model.tuned
    asked = Shape(
        workers=job.workers or shape.workers,
        servers=job.servers or shape.servers,
        worker_cpu=job.worker_cpu or shape.worker_cpu,
        server_cpu=job.server_cpu or shape.server_cpu,
        worker_memory=shape.worker_memory if job.worker_gib is None else int(job.worker_gib * GIB),
        server_memory=shape.server_memory if job.server_gib is None else int(job.server_gib * GIB),
    )
    true = one(world, model, requested=asked, name=job.name or f"job-{index}", steps=job.steps)
    return replace(
        true,
        user=job.user,
        kind=job.kind or f"{job.user}/{model.name}",
        arrives_at=job.at,
        memory=replace(true.memory, table_bytes=job.table_gib * GIB),
        faults=JobFaults(
            hot=job.hot,
            straggles_at=math.inf if job.straggles_at is None else job.straggles_at,
            straggler_speed=world.faults.straggler_speed,
        ),
        seed=8 * (index if job.seed is None else job.seed),
    )


def example() -> str:
    jobs = [
        {"name": "ads", "model": "widedeep", "at": 0, "workers": 8, "servers": 2, "worker_cpu": 8, "server_cpu": 16},
        {"name": "feed", "model": "xdeepfm", "at": 120, "workers": 4, "servers": 2, "worker_cpu": 16, "server_cpu": 8},
        {"name": "search", "model": "dcn", "at": 300, "steps": 100_000, "hot": 1.5, "table_gib": 40, "server_gib": 16},
    ]
    lines = ",\n".join(f"    {json.dumps(job)}" for job in jobs)
    return f'{{\n  "world": {{"nodes": 20}},\n  "jobs": [\n{lines}\n  ]\n}}'
