"""True speed, resource use and memory limits of a job, and the pods of the cluster.

The step time follows from Eqns 1-6 with the true coefficients (`planning.perf_model.equations`). A step never takes
less time than its core-seconds need on the available cores. Policies see a job only through noisy profiles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from springtide import errors
from springtide.domain.core.shape import GIB, ResourceBudget, Shape
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients
from springtide.sim.world.parameters import ClusterWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMemory:
    """True memory of a job, in bytes."""

    table_bytes: float
    """Bytes of all tables at the end of the job."""
    table_at_start: float
    """Share of `table_bytes` that exists at the first step."""
    worker_bytes: float
    server_base_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFaults:
    """Faults of a job, which are the same under every policy."""

    hot: float = 1.0
    """Load of the hottest server relative to the mean."""
    straggles_at: float = math.inf
    """Share of the samples after which a worker becomes slow."""
    straggler_speed: float = 1.0
    slow_server_at: float = math.inf
    """Share of the samples after which a server becomes slow."""
    server_speed: float = 1.0
    starved: bool = False
    """True if the user requested too little server CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueJob:
    """A job with its true properties and its user's request."""

    name: str
    user: str
    kind: str
    """Kind of the job; jobs of one kind are repetitions of each other."""
    model: str
    arrives_at: float
    samples: float
    facts: ModelFacts
    coefficients: Coefficients
    worker_core_s: float
    server_core_s: float
    requested: Shape
    memory: JobMemory
    faults: JobFaults = field(default_factory=JobFaults)
    tries: int = 0
    """Number of earlier failures; a re-run is a new job."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCondition:
    """Faults that a running job has at present."""

    hot: float = 1.0
    worker_speed: float = 1.0
    """Speed of the slowest worker's cores, as a share of its assigned cores."""
    server_speed: float = 1.0
    missing: int = 0
    """Number of lost workers that are not replaced yet."""


WELL = FaultCondition()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed and resource use of a running job."""

    step_s: float
    """Step time of a healthy worker, in seconds."""
    terms: tuple[float, float, float, float]
    """Parts of the step time: gradient, update, synchronization, lookup. The rest is constant."""
    steps_s: float
    """Steps per second of all workers together."""
    worker_cores: float
    server_cores: float


def speed(job: TrueJob, shape: Shape, condition: FaultCondition = WELL, *, dynamic: bool = True) -> Speed:
    """Return the speed of a shape. Without dynamic shards, all workers have equal parts of the data, so the slowest
    worker determines the speed.
    """
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
    if steps > most:  # the servers are the bottleneck, so all workers wait for them
        wait = step * (steps / most - 1)
        slowed, step, steps = slowed + wait, step + wait, most
    return Speed(
        step_s=step,
        terms=(gradient, slowed, synchronization, lookup),
        steps_s=steps,
        worker_cores=min(steps * job.worker_core_s, shape.workers * shape.worker_cpu),
        server_cores=min(steps * job.server_core_s, shape.servers * shape.server_cpu),
    )


def rows_bytes(job: TrueJob, done: float) -> float:
    """Return the bytes of all tables after `done` samples. Tables grow in proportion to the samples (000 §5.3)."""
    share = min(1.0, done / job.samples)
    return job.memory.table_bytes * (job.memory.table_at_start + (1 - job.memory.table_at_start) * share)


def server_bytes(job: TrueJob, servers: int, done: float, hot: float = 1.0) -> float:
    return job.memory.server_base_bytes + min(1.0, hot / servers) * rows_bytes(job, done)


def full_at(job: TrueJob, shape: Shape, hot: float = 1.0) -> float:
    """Return the number of samples that fill a server's memory; infinite if the memory suffices to the end."""
    if not shape.server_memory or server_bytes(job, shape.servers, job.samples, hot) <= shape.server_memory:
        return math.inf
    room = (shape.server_memory - job.memory.server_base_bytes) / min(1.0, hot / shape.servers) / job.memory.table_bytes
    return max(0.0, (room - job.memory.table_at_start) / (1 - job.memory.table_at_start)) * job.samples


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
    """Return a profile in which each term has an independent error. With `cores`, the measured number of cores has an
    error too."""
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
    shape = job.requested
    if more_memory:
        shape = replace(shape, server_memory=2 * shape.server_memory)
    name = f"{job.name.partition('~')[0]}~{job.tries + 1}"
    return replace(job, name=name, arrives_at=at, requested=shape, tries=job.tries + 1, seed=job.seed + 1)


NORMAL = NormalDist()


class Cluster:
    """Cores and bytes in use, and free."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.capacity = ResourceBudget(
            cpu=world.size.nodes * world.size.node_cpu, memory=world.size.nodes * world.size.node_memory * GIB
        )
        self.cpu = 0.0
        self.memory = 0.0

    @property
    def free(self) -> ResourceBudget:
        return ResourceBudget(
            cpu=max(0.0, self.capacity.cpu - self.cpu), memory=max(0.0, self.capacity.memory - self.memory)
        )

    def fits(self, cpu: float, memory: float) -> bool:
        return self.capacity.fits(self.cpu + cpu, self.memory + memory)

    def take(self, cpu: float, memory: float) -> None:
        if (cpu > 0 or memory > 0) and not self.fits(max(cpu, 0.0), max(memory, 0.0)):
            raise errors.JobFailed(f"the virtual cluster has no {cpu:g} cores and {memory:g} bytes left")
        self.cpu += cpu
        self.memory += memory

    def allows(self, shape: Shape) -> bool:
        most = self.world.size.node_memory * GIB
        return (
            max(shape.worker_cpu, shape.server_cpu) <= self.world.size.node_cpu
            and max(shape.worker_memory, shape.server_memory) <= most
        )


def pending_s(world: ClusterWorld, cpu: float, pods: int, random: np.random.Generator) -> float:
    """Return the seconds until the last of these pods has a node. Larger pods wait longer."""
    if pods < 1:
        return 0.0
    slowest = NORMAL.inv_cdf(min(max(float(random.random()) ** (1 / pods), 1e-9), 1 - 1e-9))
    return world.pods.pending_s_a_core * cpu * math.exp(world.pods.pending_spread * slowest)


def between(old: Shape, new: Shape) -> ResourceBudget:
    """Return the resources that a live change needs. Pods of unchanged size count once."""
    cpu = memory = 0.0
    for role in ("worker", "server"):
        before = (getattr(old, f"{role}_cpu"), getattr(old, f"{role}_memory"))
        after = (getattr(new, f"{role}_cpu"), getattr(new, f"{role}_memory"))
        counts = getattr(old, f"{role}s"), getattr(new, f"{role}s")
        if before == after:
            cpu, memory = cpu + max(counts) * before[0], memory + max(counts) * before[1]
        else:
            cpu += counts[0] * before[0] + counts[1] * after[0]
            memory += counts[0] * before[1] + counts[1] * after[1]
    return ResourceBudget(cpu=cpu, memory=memory)


def larger(old: Shape, new: Shape) -> ResourceBudget:
    """Return the larger amount of cores and of memory of the two shapes, for a change that shrinks before it grows."""
    return ResourceBudget(cpu=max(old.cpu, new.cpu), memory=max(old.memory, new.memory))


def new_pods(old: Shape | None, new: Shape) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return the size and number of new worker pods and of new server pods. A pod that changes its size is a new
    pod."""
    found = []
    for role in ("worker", "server"):
        size = (getattr(new, f"{role}_cpu"), getattr(new, f"{role}_memory"))
        same = old is not None and (getattr(old, f"{role}_cpu"), getattr(old, f"{role}_memory")) == size
        there = getattr(old, f"{role}s") if same else 0
        found.append((size[0], max(0, getattr(new, f"{role}s") - there)))
    return found[0], found[1]
