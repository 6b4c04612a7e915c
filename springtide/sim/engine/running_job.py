"""State of one simulated job from submission to end: progress, resources and usage.

In: `simulation` changes the job's shape and condition and advances time. Out: a `JobOutcome` at the end. Rates are
constant between two events, so one multiplication advances the job.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import (
    GIB,
    NO_NEED,
    NOTHING,
    UNBOUNDED,
    MemoryNeed,
    ResourceBudget,
    Shape,
    ShapeBounds,
)
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import (
    FindingKind,
    GuardFinding,
    JobView,
    LaunchTime,
    PastJob,
    RoleUse,
    TrainingProgress,
)
from springtide.domain.spec.planning_config import Feature, PlanningIdentity, PlanningStage
from springtide.planning.guards import memory
from springtide.planning.guards.memory import RowCount
from springtide.sim.world import world as world_model
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import FaultCondition, Speed, TrueJob

MEASURED = 1
"""Number of the random stream for errors of measured cores. The stream is separate, so that these errors do not
change the job's other random draws.
"""


class JobEnd(StrEnum):
    """Outcome of a job."""

    FINISHED = "finished"
    OOM = "out of memory"
    POD_LOST = "pod lost"
    SCHEDULING = "scheduling"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class Used:
    """Integrals over time: core-seconds and byte-seconds that were used and that were allocated."""

    worker_cpu: float = 0.0
    worker_cpu_of: float = 0.0
    server_cpu: float = 0.0
    server_cpu_of: float = 0.0
    worker_memory: float = 0.0
    worker_memory_of: float = 0.0
    server_memory: float = 0.0
    server_memory_of: float = 0.0


@dataclass(slots=True)
class JobTally:
    """Statistics of a job."""

    used: Used = field(default_factory=Used)
    changes: int = 0
    ooms: int = 0
    slow_s: float = 0.0
    """Seconds that the job lost to a hot server or a straggler."""
    ran_out: Shape | None = None
    """Shape in which a server last ran out of memory."""
    initial: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Result and statistics of one job."""

    job: TrueJob
    end: JobEnd
    ended_at: float
    started_at: float | None
    final: Shape | None
    tally: JobTally
    scaling_s: float
    """Seconds from the job's start to its last change of shape."""
    samples: float

    @property
    def jct_s(self) -> float:
        return self.ended_at - self.job.arrives_at

    @property
    def pending_s(self) -> float:
        return (self.ended_at if self.started_at is None else self.started_at) - self.job.arrives_at


@dataclass(slots=True)
class JobProgress:
    """Number of trained samples, and the accumulated hazard (pods times time), which decides when the job loses a
    pod."""

    since: float
    """Time up to which the job was advanced."""
    next_loss: float
    """Value of the hazard at which the job loses its next pod."""
    done: float = 0.0
    hazard: float = 0.0


@dataclass(slots=True)
class JobRate:
    """Speed of a job, which is constant until the next event."""

    condition: FaultCondition
    speed: Speed | None = None
    held_up: float = 0.0
    """Share of the speed that a hot server or a straggler costs."""
    generation: int = 0
    """Number of times that the rate has changed. Events that were scheduled under an earlier rate are void."""


@dataclass(slots=True)
class JobObservations:
    """Measurements of a job that its policy sees."""

    errors: np.random.Generator
    use_errors: tuple[float, float] = (1.0, 1.0)
    """Ratio of measured cores to true cores in the last window, for workers and for servers."""
    profiles: list[Profile] = field(default_factory=list)
    launches: list[LaunchTime] = field(default_factory=list)
    row_counts: list[RowCount] = field(default_factory=list)
    need: MemoryNeed = NO_NEED
    looked_at: float = -math.inf
    news: bool = True


class SimulatedJob:
    """Mutable state of a job. Before any change of its rate, call `touch`, which advances the job to the current
    time."""

    def __init__(self, job: TrueJob) -> None:
        self.job = job
        self.random = np.random.default_rng(job.seed)
        self.progress = JobProgress(since=job.arrives_at, next_loss=float(self.random.exponential()))
        self.rate = JobRate(FaultCondition(hot=job.faults.hot))
        self.tally = JobTally()
        self.observed = JobObservations(np.random.default_rng([job.seed, MEASURED]))
        self.shape: Shape | None = None
        self.stage = PlanningStage.WAITING
        self.reserved = NOTHING
        self.started_at: float | None = None
        self.last_change_at: float | None = None
        self.launching = False
        self.paused_until = 0.0
        self.ended = False

    @property
    def changed_at(self) -> float:
        return self.last_change_at if self.last_change_at is not None else self.started_at or 0.0

    @property
    def paused(self) -> bool:
        return self.paused_until > 0

    @property
    def samples_s(self) -> float:
        return 0.0 if self.paused or self.rate.speed is None else self.rate.speed.steps_s * self.job.facts.batch

    def touch(self, now: float, loss_rate: float) -> None:
        seconds, self.progress.since = now - self.progress.since, now
        if seconds <= 0 or self.shape is None or self.rate.speed is None:
            return
        shape, used, speed = self.shape, self.tally.used, self.rate.speed
        before = self.progress.done
        self.progress.done = min(self.job.samples, before + self.samples_s * seconds)
        busy = 0.0 if self.paused else seconds
        used.worker_cpu += speed.worker_cores * busy
        used.worker_cpu_of += shape.workers * shape.worker_cpu * seconds
        used.server_cpu += speed.server_cores * busy
        used.server_cpu_of += shape.servers * shape.server_cpu * seconds
        used.worker_memory += self.job.memory.worker_bytes * shape.workers * seconds
        used.worker_memory_of += shape.workers * shape.worker_memory * seconds
        rows = (world_model.rows_bytes(self.job, before) + world_model.rows_bytes(self.job, self.progress.done)) / 2
        used.server_memory += (rows + self.job.memory.server_base_bytes * shape.servers) * seconds
        used.server_memory_of += shape.servers * shape.server_memory * seconds
        self.progress.hazard += loss_rate * (shape.workers + shape.servers) * seconds
        self.tally.slow_s += busy * self.rate.held_up

    def set_speed(self, *, dynamic: bool) -> None:
        if self.shape is None:
            return
        self.rate.speed = world_model.speed(self.job, self.shape, self.rate.condition, dynamic=dynamic)
        well = replace(self.rate.condition, hot=1.0, worker_speed=1.0, server_speed=1.0)
        whole = (
            self.rate.speed
            if self.rate.condition == well
            else world_model.speed(self.job, self.shape, well, dynamic=dynamic)
        )
        self.rate.held_up = 1 - self.rate.speed.steps_s / whole.steps_s if whole.steps_s > 0 else 0.0

    def outcome(self, end: JobEnd, now: float) -> JobOutcome:
        scaling = 0.0
        if self.started_at is not None and self.last_change_at is not None:
            scaling = self.last_change_at - self.started_at
        return JobOutcome(
            job=self.job,
            end=end,
            ended_at=now,
            started_at=self.started_at,
            final=self.shape,
            tally=self.tally,
            scaling_s=scaling,
            samples=self.progress.done,
        )


ROOM = 1.15
"""Factor between the memory that the forecast says and the memory that is requested."""
MOST_SERVERS, MOST_WORKERS = 64, 100
WORKERS = tuple(Role(RoleKind.WORKER, rank) for rank in range(512))
SERVERS = tuple(Role(RoleKind.SERVER, rank) for rank in range(1024))


def bounds(world: ClusterWorld, *, elastic: bool) -> ShapeBounds:
    """Return the bounds of a job. Users without autoscaling have no quota, and may ask for any pod that fits a node."""
    most, least_cpu = int(world.size.node_memory * GIB), 1.0 if elastic else 0.01
    return ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=least_cpu, server_cpu=least_cpu),
        most=Shape(
            workers=MOST_WORKERS if elastic else 1000,
            servers=MOST_SERVERS if elastic else 1000,
            worker_cpu=world.size.node_cpu,
            server_cpu=world.size.node_cpu,
            worker_memory=most,
            server_memory=most,
        ),
        quota=ResourceBudget(cpu=world.size.job_cpu, memory=MOST_SERVERS * most) if elastic else UNBOUNDED,
    )


def features(job: TrueJob) -> dict[str, Feature]:
    return {
        "user": job.user,
        "kind": job.kind,
        "model": job.model,
        "batch": float(job.facts.batch),
        "samples": job.samples,
        "dim": job.facts.dim,
    }


def need(running: SimulatedJob) -> MemoryNeed:
    law = memory.fit(running.observed.row_counts)
    rows = max(law.cautious(running.job.samples), world_model.rows_bytes(running.job, running.progress.done))
    return _roomy(running.job, rows)


def _roomy(job: TrueJob, rows: float) -> MemoryNeed:
    return MemoryNeed(
        worker=int(job.memory.worker_bytes * ROOM),
        server=int(job.memory.server_base_bytes * ROOM),
        rows=int(rows * ROOM),
    )


def view(running: SimulatedJob, limits: ShapeBounds) -> JobView:
    job = running.job
    return JobView(
        name=job.name,
        identity=PlanningIdentity(user=job.user, features=features(job)),
        facts=job.facts,
        bounds=limits,
        shape=running.shape,
        requested=job.requested,
        need=running.observed.need,
        progress=TrainingProgress(
            submitted_at=job.arrives_at,
            started_at=running.started_at,
            last_change_at=running.last_change_at,
            samples_done=running.progress.done,
            samples_total=job.samples,
        ),
        stage=running.stage,
        profiles=tuple(running.observed.profiles),
        uses=uses(running),
        launches=tuple(running.observed.launches),
        findings=findings(running),
    )


def uses(running: SimulatedJob) -> tuple[RoleUse, ...]:
    """Return the usage of each worker and server; server 0 is the hottest."""
    shape, speed = running.shape, running.rate.speed
    if shape is None or speed is None:
        return ()
    of_workers, of_servers = running.observed.use_errors
    worker_cpu = speed.worker_cores / shape.workers
    mean = speed.server_cores / shape.servers
    hot = running.rate.condition.hot if shape.servers > 1 else 1.0
    hottest = min(mean * hot, shape.server_cpu)
    others = (speed.server_cores - hottest) / max(shape.servers - 1, 1)
    full = world_model.server_bytes(running.job, shape.servers, running.progress.done)
    workers = tuple(
        RoleUse(
            role=role,
            cpu_used=worker_cpu * of_workers,
            cpu=shape.worker_cpu,
            memory_used=int(running.job.memory.worker_bytes),
            memory=shape.worker_memory,
        )
        for role in WORKERS[: shape.workers]
    )
    servers = tuple(
        RoleUse(
            role=role,
            cpu=shape.server_cpu,
            memory=shape.server_memory,
            cpu_used=of_servers * (hottest if role.rank == 0 else others),
            memory_used=int(full),
        )
        for role in SERVERS[: shape.servers]
    )
    return (*workers, *servers)


def findings(running: SimulatedJob) -> tuple[GuardFinding, ...]:
    """Return the findings of the guards. An out-of-memory finding ends when the servers have more memory than at the
    failure."""
    shape = running.shape
    if shape is None:
        return ()
    found, server = [], Role(RoleKind.SERVER)
    end = running.observed.need.of_server(shape.servers)
    if 0 < shape.server_memory < end:
        reason = f"servers will need {end / GIB:.1f} GiB and have {shape.server_memory / GIB:.1f}"
        found.append(GuardFinding(trouble=FindingKind.MEMORY, role=server, why=reason))
    if running.tally.ran_out is not None and _of_servers(shape) <= _of_servers(running.tally.ran_out):
        found.append(GuardFinding(trouble=FindingKind.OOM, role=server, why="a server ran out of memory"))
    return tuple(found)


def _of_servers(shape: Shape) -> int:
    return shape.servers * shape.server_memory


def past(running: SimulatedJob, end: JobEnd, at: float) -> PastJob:
    """Return the record of a finished job. The job's final memory counts as its need."""
    job = running.job
    rows = world_model.rows_bytes(job, running.progress.done)
    return PastJob(
        name=job.name,
        user=job.user,
        features=features(job),
        initial=running.tally.initial,
        shape=running.shape,
        finished=end is JobEnd.FINISHED,
        ended_at=at,
        need=_roomy(job, rows),
        facts=job.facts,
    )
