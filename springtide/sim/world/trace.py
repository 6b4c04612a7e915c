"""Reads a workload from a YAML or JSON file: hand-written or recorded jobs. JSON needs no PyYAML.

In: a path. Out: a `WorkloadTrace` with jobs, and a `ClusterWorld` with the file's overrides. Errors name the line, the
field and the likely intention. `example()` returns a valid trace. Next: `simulation`.

    world: {nodes: 20}                 # any field of `springtide.sim.world.parameters.World`
    jobs:
      - {model: widedeep, at: 0, steps: 200000, workers: 8, servers: 2, worker_cpu: 4, server_cpu: 8}
"""

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from springtide import errors, file_input
from springtide.domain.core.shape import GIB, Shape
from springtide.file_input import InputFile, kind
from springtide.sim.world import models, workload
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob

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
        raise place.fail((), f"wanted the sections {' and '.join(SECTIONS)}, got {kind(data)}")
    for section in data:
        if section not in SECTIONS:
            raise place.fail((section,), str(errors.UnknownName("section", str(section), SECTIONS)))
    world = _world(place, data.get("world") or {})
    listed = data.get("jobs")
    if not isinstance(listed, list) or not listed:
        raise place.fail(("jobs",) if "jobs" in data else (), f"wanted a list of jobs, got {kind(listed)}")
    jobs = tuple(_job(place, world, index, entry) for index, entry in enumerate(listed))
    seen: set[str] = set()
    for index, job in enumerate(jobs):
        if job.name in seen:
            raise place.fail(("jobs", index), f"a second job is named {job.name!r}; wanted each name once")
        seen.add(job.name)
    return WorkloadTrace(world=world, jobs=tuple(sorted(jobs, key=lambda job: job.arrives_at)))


ROOMS = ("nodes", "node_cpu", "node_memory", "job_cpu")


def _world(place: InputFile, changes: Any) -> ClusterWorld:
    if not isinstance(changes, Mapping):
        raise place.fail(("world",), f"wanted names and numbers, got {kind(changes)}")
    known = {each.name for each in fields(ClusterWorld)}
    for name, value in changes.items():
        if name not in known:
            raise place.fail(("world", str(name)), str(errors.UnknownName("parameter", str(name), known)))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise place.fail(("world", str(name)), f"wanted a number, 0 or more, got {value!r}")
        if name in ROOMS and not value:
            raise place.fail(("world", str(name)), "no job can begin with 0; wanted more")
    return replace(ClusterWorld(), **changes)


def _job(place: InputFile, world: ClusterWorld, index: int, entry: Any) -> TrueJob:
    trail = ("jobs", index)
    if not isinstance(entry, Mapping):
        raise place.fail(trail, f"wanted a job's fields, got {kind(entry)}")
    for name, value in entry.items():
        if name not in FIELDS:
            raise place.fail((*trail, str(name)), str(errors.UnknownName("field", str(name), FIELDS)))
        _check(place, (*trail, str(name)), value)
    if "model" not in entry:
        raise place.fail(trail, f"no model; wanted one of {', '.join(models.MODELS)}")
    if entry["model"] not in models.MODELS:
        unknown = str(errors.UnknownName("model", entry["model"], models.MODELS))
        raise place.fail((*trail, "model"), unknown)
    return _filled(world, models.model(entry["model"]), index, entry)


def _check(place: InputFile, trail: tuple[str | int, ...], value: Any) -> None:
    name = str(trail[-1])
    if name in WORDS:
        if not isinstance(value, str) or not value:
            raise place.fail(trail, f"wanted {WORDS[name]}, got {value!r}")
        return
    most = MOST.get(name, float("inf"))
    number = isinstance(value, int if name in WHOLE else int | float) and not isinstance(value, bool)
    least = 1 if name in {"steps", "workers", "servers", "hot"} else 0
    above_zero = name in {"worker_cpu", "server_cpu"}
    if not number or not least <= value <= most or value == float("inf") or (above_zero and value <= 0):
        bound = f", up to {most:g}" if name in MOST else ""
        whole = "a whole number" if name in WHOLE else "a number"
        from_ = "above 0" if above_zero else f"from {least}"
        raise place.fail(trail, f"wanted {whole} {from_}{bound} ({NUMBERS[name]}), got {value!r}")


def _filled(world: ClusterWorld, model: models.PaperModel, index: int, entry: Mapping[str, Any]) -> TrueJob:
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
    job = workload.one(world, model, requested=shape, name=entry.get("name", f"job-{index}"), steps=entry.get("steps"))
    return replace(
        job,
        user=entry.get("user", "user"),
        kind=entry.get("kind", f"{entry.get('user', 'user')}/{model.name}"),
        arrives_at=float(entry.get("at", 0.0)),
        table_bytes=float(entry.get("table_gib", 8.0)) * GIB,
        hot=float(entry.get("hot", 1.0)),
        straggles_at=float(entry.get("straggles_at", float("inf"))),
        straggler_speed=world.straggler_speed,
        seed=int(entry.get("seed", index)) * 8,
    )


def example() -> str:
    """Return an example trace: three jobs on a small cluster."""
    jobs = [
        {"name": "ads", "model": "widedeep", "at": 0, "workers": 8, "servers": 2, "worker_cpu": 8, "server_cpu": 16},
        {"name": "feed", "model": "xdeepfm", "at": 120, "workers": 4, "servers": 2, "worker_cpu": 16, "server_cpu": 8},
        {"name": "search", "model": "dcn", "at": 300, "steps": 100_000, "hot": 1.5, "table_gib": 40, "server_gib": 16},
    ]
    lines = ",\n".join(f"    {json.dumps(job)}" for job in jobs)
    return f'{{\n  "world": {{"nodes": 20}},\n  "jobs": [\n{lines}\n  ]\n}}'
