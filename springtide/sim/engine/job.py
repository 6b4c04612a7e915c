"""State of one simulated job from submission to end: progress, held resources and usage.

In: `simulation` changes the job's shape and condition and advances time. Out: a `JobOutcome` at the end. Rates are
constant between two events, so one multiplication advances the job.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from springtide.domain.core.shape import NO_NEED, Shape
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningStage
from springtide.planning.guards.growth import RowCount
from springtide.sim.world import world as physics
from springtide.sim.world.cluster import Reserved
from springtide.sim.world.world import FaultCondition, Speed, TrueJob

MEASURED = 1
"""Random stream of errors in measured cores. It is separate, so that these errors do not change the
job's other draws.
"""


class JobEnd(StrEnum):
    """Outcome of a job."""

    FINISHED = "finished"
    OOM = "out of memory"
    POD_LOST = "pod lost"
    SCHEDULING = "scheduling"
    UNFINISHED = "unfinished"
    """The simulation ended before the job."""


@dataclass(slots=True)
class Used:
    """Integrals over time: core-seconds and byte-seconds, used and allocated."""

    worker_cpu: float = 0.0
    worker_cpu_of: float = 0.0
    server_cpu: float = 0.0
    server_cpu_of: float = 0.0
    worker_memory: float = 0.0
    worker_memory_of: float = 0.0
    server_memory: float = 0.0
    server_memory_of: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Result and statistics of one job."""

    job: TrueJob
    end: JobEnd
    ended_at: float
    started_at: float | None
    initial: Shape | None
    final: Shape | None
    used: Used
    changes: int
    scaling_s: float
    """Seconds from the job's start to its last change of shape."""
    ooms: int
    slow_s: float
    """Seconds lost to a hot server or a straggler."""
    samples: float

    @property
    def jct_s(self) -> float:
        return self.ended_at - self.job.arrives_at

    @property
    def pending_s(self) -> float:
        return (self.ended_at if self.started_at is None else self.started_at) - self.job.arrives_at


class SimulatedJob:
    """Mutable state of a job. Call `touch` to advance the job to the current time before any change of its rate."""

    def __init__(self, job: TrueJob) -> None:
        self.job = job
        self.random = np.random.default_rng(job.seed)
        self.errors = np.random.default_rng([job.seed, MEASURED])
        self.use_errors = (1.0, 1.0)
        """Measured over true cores of workers and of servers, in the last window."""
        self.shape: Shape | None = None
        self.initial: Shape | None = None
        self.extra_workers = 0
        self.stage = PlanningStage.WAITING
        self.condition = FaultCondition(hot=job.hot)
        self.speed: Speed | None = None
        self.done = 0.0
        self.since = job.arrives_at
        self.started_at: float | None = None
        self.last_change_at: float | None = None
        self.reserved = Reserved()
        self.launching = False
        self.paused_until = 0.0
        self.generation = 0
        self.hazard = 0.0
        self.next_loss = float(self.random.exponential())
        self.profiles: list[Profile] = []
        self.launches: list[LaunchTime] = []
        self.seen: list[RowCount] = []
        self.need = NO_NEED
        self.looked_at = -math.inf
        self.news = True
        self.used = Used()
        self.changes = self.ooms = 0
        self.ran_out: Shape | None = None
        self.slow_s = self.held_up = 0.0
        self.ended = False

    @property
    def running(self) -> bool:
        return self.shape is not None and not self.ended

    @property
    def changed_at(self) -> float:
        return self.last_change_at if self.last_change_at is not None else self.started_at or 0.0

    @property
    def paused(self) -> bool:
        return self.paused_until > 0

    @property
    def at_work(self) -> Shape:
        assert self.shape is not None
        return (
            replace(self.shape, workers=self.shape.workers + self.extra_workers) if self.extra_workers else self.shape
        )

    @property
    def samples_s(self) -> float:
        return 0.0 if self.paused or self.speed is None else self.speed.steps_s * self.job.facts.batch

    def touch(self, now: float, loss_rate: float) -> None:
        seconds, self.since = now - self.since, now
        if seconds <= 0 or self.shape is None or self.speed is None:
            return
        shape, used, speed = self.at_work, self.used, self.speed
        before = self.done
        self.done = min(self.job.samples, before + self.samples_s * seconds)
        busy = 0.0 if self.paused else seconds
        used.worker_cpu += speed.worker_cores * busy
        used.worker_cpu_of += shape.workers * shape.worker_cpu * seconds
        used.server_cpu += speed.server_cores * busy
        used.server_cpu_of += shape.servers * shape.server_cpu * seconds
        used.worker_memory += self.job.worker_bytes * shape.workers * seconds
        used.worker_memory_of += shape.workers * shape.worker_memory * seconds
        rows = (physics.rows_bytes(self.job, before) + physics.rows_bytes(self.job, self.done)) / 2
        used.server_memory += (rows + self.job.server_base_bytes * shape.servers) * seconds
        used.server_memory_of += shape.servers * shape.server_memory * seconds
        self.hazard += loss_rate * (shape.workers + shape.servers) * seconds
        self.slow_s += busy * self.held_up

    def set_speed(self, *, dynamic: bool) -> None:
        if self.shape is None:
            return
        self.speed = physics.speed(self.job, self.at_work, self.condition, dynamic=dynamic)
        well = replace(self.condition, hot=1.0, worker_speed=1.0, server_speed=1.0)
        whole = self.speed if self.condition == well else physics.speed(self.job, self.at_work, well, dynamic=dynamic)
        self.held_up = 1 - self.speed.steps_s / whole.steps_s if whole.steps_s > 0 else 0.0

    def outcome(self, end: JobEnd, now: float) -> JobOutcome:
        scaling = 0.0
        if self.started_at is not None and self.last_change_at is not None:
            scaling = self.last_change_at - self.started_at
        return JobOutcome(
            job=self.job,
            end=end,
            ended_at=now,
            started_at=self.started_at,
            initial=self.initial,
            final=self.shape,
            used=self.used,
            changes=self.changes,
            scaling_s=scaling,
            ooms=self.ooms,
            slow_s=self.slow_s,
            samples=self.done,
        )
