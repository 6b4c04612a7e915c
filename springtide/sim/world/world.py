"""How fast a job truly is, what it uses and when its memory is full: what policies see only through profiles.

In: a `TrueJob`, the shape that runs, what is wrong with it. Out: samples a second, cores and bytes used, a noisy
profile. A step takes what Eqns 1-6 say (`planning.perf_model.equations`, true coefficients), and never less than its
core-seconds need on the cores there are (001 Eqn 4: servers with too little CPU are the bottleneck, whatever the
workers do). Next: `simulation` lets time pass by these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueJob:
    """One job as it truly is, and what its user asked for."""

    name: str
    user: str
    kind: str
    """Jobs of one kind are repetitions of each other."""
    model: str
    arrives_at: float
    samples: float
    facts: ModelFacts
    coefficients: Coefficients
    worker_core_s: float
    server_core_s: float
    requested: Shape
    table_bytes: float
    """At the end."""
    table_at_start: float
    """Share of it that is there from the first step on."""
    worker_bytes: float
    server_base_bytes: float
    hot: float = 1.0
    """Load of the hottest server, in mean loads."""
    straggles_at: float = math.inf
    """Share of the samples after which a worker becomes slow."""
    straggler_speed: float = 1.0
    slow_server_at: float = math.inf
    """The same of a server."""
    server_speed: float = 1.0
    starved: bool = False
    """Its user asked for too little server CPU."""
    tries: int = 0
    """How often it has failed before: a re-run is a new job."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCondition:
    """What is wrong with a running job at the moment."""

    hot: float = 1.0
    worker_speed: float = 1.0
    """Cores of the slowest worker, as a share of what it should have."""
    server_speed: float = 1.0
    missing: int = 0
    """Workers that are lost and not replaced yet."""


WELL = FaultCondition()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A job at work."""

    step_s: float
    """Of a healthy worker."""
    terms: tuple[float, float, float, float]
    """Of it: gradient, update, synchronization, lookup; the rest is constant."""
    steps_s: float
    """Of all workers together."""
    worker_cores: float
    """Used by all workers."""
    server_cores: float
    """Used by all servers."""


def speed(job: TrueJob, shape: Shape, condition: FaultCondition = WELL, *, dynamic: bool = True) -> Speed:
    """How fast the shape is. Without dynamic shards everyone has an equal part, so the slowest worker decides."""
    terms = equations.terms(job.coefficients, job.facts, shape)
    gradient, update, lookup = float(terms.gradient), float(terms.update), float(terms.lookup)
    synchronization, constant = float(terms.synchronization), terms.constant
    workers = max(shape.workers - condition.missing, 0)
    slowed = update / condition.server_speed
    step = gradient + slowed + synchronization + lookup + constant
    starved = job.worker_core_s / shape.worker_cpu - step
    if starved > 0:
        gradient, step = gradient + starved, step + starved
    slow = step + gradient * (1 / condition.worker_speed - 1)
    straggling = condition.worker_speed < 1 and workers > 0
    steps = (workers - 1) / step + 1 / slow if straggling else workers / step
    if straggling and not dynamic:
        steps = workers / slow
    hottest = min(shape.server_cpu / condition.hot, shape.server_cpu * condition.server_speed)
    most = shape.servers * hottest / job.server_core_s
    if steps > most:  # every worker waits for the servers: longer steps
        wait = step * (steps / most - 1)
        slowed, step, steps = slowed + wait, step + wait, most
    return Speed(
        step_s=step,
        terms=(gradient, slowed, synchronization, lookup),
        steps_s=steps,
        worker_cores=min(steps * job.worker_core_s, shape.workers * shape.worker_cpu),
        server_cores=min(steps * job.server_core_s, shape.servers * shape.server_cpu),
    )


def samples_s(job: TrueJob, shape: Shape, condition: FaultCondition = WELL, *, dynamic: bool = True) -> float:
    return speed(job, shape, condition, dynamic=dynamic).steps_s * job.facts.batch


def rows_bytes(job: TrueJob, done: float) -> float:
    """Bytes of all tables after so many samples: growth is proportional to samples (000 §5.3)."""
    share = min(1.0, done / job.samples)
    return job.table_bytes * (job.table_at_start + (1 - job.table_at_start) * share)


def server_bytes(job: TrueJob, servers: int, done: float, hot: float = 1.0) -> float:
    return job.server_base_bytes + min(1.0, hot / servers) * rows_bytes(job, done)


def full_at(job: TrueJob, shape: Shape, hot: float = 1.0) -> float:
    """Samples after which a server's memory is full; infinity: it is enough to the end."""
    if not shape.server_memory or server_bytes(job, shape.servers, job.samples, hot) <= shape.server_memory:
        return math.inf
    room = (shape.server_memory - job.server_base_bytes) / min(1.0, hot / shape.servers) / job.table_bytes
    return max(0.0, (room - job.table_at_start) / (1 - job.table_at_start)) * job.samples


def profile(
    job: TrueJob,
    shape: Shape,
    now: Speed,
    *,
    steps: int,
    at: float,
    noise: Sequence[float],
    cores: tuple[float, float] | None = None,
) -> Profile:
    """What a window of steps measured: each term and the rest with an error of its own; `cores`: errors of cores that
    workers and servers used, where they were counted."""
    constant = max(now.step_s - sum(now.terms), 0.0)
    gradient, update, synchronization, lookup, rest = (
        steps * term * error for term, error in zip((*now.terms, constant), noise, strict=True)
    )
    timing = TimingSum(
        steps=steps,
        samples=steps * job.facts.batch,
        gradient_s=gradient,
        update_s=update,
        synchronization_s=synchronization,
        lookup_s=lookup,
        data_s=rest,
        forward_s=gradient / 3,
        backward_s=gradient * 2 / 3,
        pull_wait_s=lookup,
        push_wait_s=update + synchronization,
        total_s=gradient + update + synchronization + lookup + rest,
    )
    used = (None, None) if cores is None else (now.worker_cores * cores[0], now.server_cores * cores[1])
    return Profile(shape=shape, batch=job.facts.batch, timing=timing, at=at, worker_cores=used[0], server_cores=used[1])


def again(job: TrueJob, *, at: float, more_memory: bool) -> TrueJob:
    """The user submits it once more; with twice the memory where that was the reason."""
    shape = job.requested
    if more_memory:
        shape = replace(shape, server_memory=2 * shape.server_memory)
    name = f"{job.name.partition('~')[0]}~{job.tries + 1}"
    return replace(job, name=name, arrives_at=at, requested=shape, tries=job.tries + 1, seed=job.seed + 1)
