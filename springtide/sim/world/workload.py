"""Draws a random workload: jobs with the resource requests that users in the papers made.

In: a `ClusterWorld`, a number of jobs, a seed. Out: `TrueJob`s in order of arrival. The same seed gives the same jobs.
Next: `simulation`.
"""

import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from springtide import errors, file_input
from springtide.domain.core.shape import GIB, Shape
from springtide.file_input import InputFile, kind
from springtide.planning.perf_model.equations import Coefficients
from springtide.sim.world import parameters
from springtide.sim.world import world as physics
from springtide.sim.world.parameters import DAY_S, MODELS, ClusterWorld, PaperModel
from springtide.sim.world.world import JobFaults, JobMemory, TrueJob

SIZES = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
"""Core counts that users request."""
MOST_WORKERS = 60
COMMON = "widedeep"


def jobs(
    world: ClusterWorld, count: int, seed: int, *, days: float | None = None, earlier: bool = False
) -> tuple[TrueJob, ...]:
    """Draw jobs with Poisson arrivals and recurring users, over one day or as many days as `count` jobs need.

    `earlier` draws other jobs of the same users, from the days before.
    """
    when, which = (4, 5) if earlier else (1, 3)
    random = np.random.default_rng([seed, when])
    length = (days if days is not None else count / world.jobs.jobs_a_day) * DAY_S
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
    """Return one test bed job: the unmodified model, no faults, enough memory."""
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
    """Vary a job's size: one random factor for computation and one for communication."""
    compute, move = (math.exp(each) for each in random.normal(0.0, spread, size=2))
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
    kind = kinds[int(len(kinds) * random.random() ** 2)]  # squaring makes some kinds far more frequent than others
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
    """Draw the user's request: usually far more than needed, sometimes too little."""
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
    used = physics.speed(job, ample)
    more_worker, more_server = world.requests.cpu_factor * np.exp(random.normal(0.0, world.requests.cpu_spread, size=2))
    worker_cpu = _size(max(used.worker_cores / workers, 0.5) * max(more_worker, 1.0))
    server_cpu = _size(max(used.server_cores / servers, 0.5) * max(more_server, 1.0))
    if job.faults.starved:
        server_cpu = max(0.25, used.server_cores / servers * random.uniform(0.25, 0.6))
    need = physics.server_bytes(job, servers, job.samples, job.faults.hot)
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


NUMBERS = {
    "at": "seconds after the start",
    "steps": "steps of a batch",
    "workers": "number",
    "servers": "number",
    "worker_cpu": "cores",
    "server_cpu": "cores",
    "worker_gib": "GiB",
    "server_gib": "GiB",
    "table_gib": "GiB of tables at the end",
    "hot": "load of the hottest server, in mean loads",
    "straggles_at": "share of the job",
    "seed": "number",
}
WORDS = {"name": "text", "user": "text", "kind": "text", "model": "one of the models"}
FIELDS = {**WORDS, **NUMBERS}
WHOLE = {"steps", "workers", "servers", "seed"}
MOST = {"workers": 500, "servers": 500, "straggles_at": 1.0}
SECTIONS = ("world", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTrace:
    """Contents of a trace file."""

    world: ClusterWorld
    jobs: tuple[TrueJob, ...]


def read(path: pathlib.Path) -> WorkloadTrace:
    text = file_input.read(path, what="a trace in YAML or JSON", hint="`springtide simulate --example` prints one")
    place = InputFile(path, text)
    data = file_input.parse(path, text, what="a trace")
    if not isinstance(data, dict):
        raise place.fail((), f"expected the sections {' and '.join(SECTIONS)}, got {kind(data)}")
    for section in data:
        if section not in SECTIONS:
            raise place.fail((section,), str(errors.UnknownName("section", str(section), SECTIONS)))
    world = _world(place, data.get("world") or {})
    listed = data.get("jobs")
    if not isinstance(listed, list) or not listed:
        raise place.fail(("jobs",) if "jobs" in data else (), f"expected a list of jobs, got {kind(listed)}")
    jobs = tuple(_traced_job(place, world, index, entry) for index, entry in enumerate(listed))
    seen: set[str] = set()
    for index, job in enumerate(jobs):
        if job.name in seen:
            raise place.fail(("jobs", index), f"a second job is named {job.name!r}; expected each name once")
        seen.add(job.name)
    return WorkloadTrace(world=world, jobs=tuple(sorted(jobs, key=lambda job: job.arrives_at)))


ROOMS = ("nodes", "node_cpu", "node_memory", "job_cpu")


def _world(place: InputFile, changes: Any) -> ClusterWorld:
    if not isinstance(changes, Mapping):
        raise place.fail(("world",), f"expected names and numbers, got {kind(changes)}")
    for name, value in changes.items():
        if name not in parameters.CONSTANTS:
            unknown = errors.UnknownName("parameter", str(name), parameters.CONSTANTS)
            raise place.fail(("world", str(name)), str(unknown))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise place.fail(("world", str(name)), f"expected a number, 0 or more, got {value!r}")
        if name in ROOMS and not value:
            raise place.fail(("world", str(name)), "no job can begin with 0; expected more")
    return ClusterWorld().changed(**changes)


def _traced_job(place: InputFile, world: ClusterWorld, index: int, entry: Any) -> TrueJob:
    trail = ("jobs", index)
    if not isinstance(entry, Mapping):
        raise place.fail(trail, f"expected a job's fields, got {kind(entry)}")
    for name, value in entry.items():
        if name not in FIELDS:
            raise place.fail((*trail, str(name)), str(errors.UnknownName("field", str(name), FIELDS)))
        _check(place, (*trail, str(name)), value)
    if "model" not in entry:
        raise place.fail(trail, f"no model; expected one of {', '.join(parameters.MODELS)}")
    if entry["model"] not in parameters.MODELS:
        unknown = str(errors.UnknownName("model", entry["model"], parameters.MODELS))
        raise place.fail((*trail, "model"), unknown)
    return _filled(world, parameters.model(entry["model"]), index, entry)


def _check(place: InputFile, trail: tuple[str | int, ...], value: Any) -> None:
    name = str(trail[-1])
    if name in WORDS:
        if not isinstance(value, str) or not value:
            raise place.fail(trail, f"expected {WORDS[name]}, got {value!r}")
        return
    most = MOST.get(name, float("inf"))
    number = isinstance(value, int if name in WHOLE else int | float) and not isinstance(value, bool)
    least = 1 if name in {"steps", "workers", "servers", "hot"} else 0
    above_zero = name in {"worker_cpu", "server_cpu"}
    if not number or not least <= value <= most or value == float("inf") or (above_zero and value <= 0):
        bound = f", up to {most:g}" if name in MOST else ""
        whole = "a whole number" if name in WHOLE else "a number"
        from_ = "above 0" if above_zero else f"from {least}"
        raise place.fail(trail, f"expected {whole} {from_}{bound} ({NUMBERS[name]}), got {value!r}")


def _filled(world: ClusterWorld, model: parameters.PaperModel, index: int, entry: Mapping[str, Any]) -> TrueJob:
    """Fill missing fields from the tuned shape and from the defaults of drawn jobs."""
    tuned = model.tuned
    shape = Shape(
        workers=entry.get("workers", tuned.workers),
        servers=entry.get("servers", tuned.servers),
        worker_cpu=float(entry.get("worker_cpu", tuned.worker_cpu)),
        server_cpu=float(entry.get("server_cpu", tuned.server_cpu)),
        worker_memory=int(entry.get("worker_gib", tuned.worker_memory / GIB) * GIB),
        server_memory=int(entry.get("server_gib", tuned.server_memory / GIB) * GIB),
    )
    job = one(world, model, requested=shape, name=entry.get("name", f"job-{index}"), steps=entry.get("steps"))
    return replace(
        job,
        user=entry.get("user", "user"),
        kind=entry.get("kind", f"{entry.get('user', 'user')}/{model.name}"),
        arrives_at=float(entry.get("at", 0.0)),
        memory=replace(job.memory, table_bytes=float(entry.get("table_gib", 8.0)) * GIB),
        faults=JobFaults(
            hot=float(entry.get("hot", 1.0)),
            straggles_at=float(entry.get("straggles_at", float("inf"))),
            straggler_speed=world.faults.straggler_speed,
        ),
        seed=int(entry.get("seed", index)) * 8,
    )


def example() -> str:
    jobs = [
        {"name": "ads", "model": "widedeep", "at": 0, "workers": 8, "servers": 2, "worker_cpu": 8, "server_cpu": 16},
        {"name": "feed", "model": "xdeepfm", "at": 120, "workers": 4, "servers": 2, "worker_cpu": 16, "server_cpu": 8},
        {"name": "search", "model": "dcn", "at": 300, "steps": 100_000, "hot": 1.5, "table_gib": 40, "server_gib": 16},
    ]
    lines = ",\n".join(f"    {json.dumps(job)}" for job in jobs)
    return f'{{\n  "world": {{"nodes": 20}},\n  "jobs": [\n{lines}\n  ]\n}}'
