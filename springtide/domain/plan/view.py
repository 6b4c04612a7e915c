"""Pure. Input of a policy: the current jobs, their cluster, and past jobs.

A master puts only its own job into the view; the brain and the simulator put all jobs into it. Next:
`planning.policy.registry`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import NO_NEED, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.data_workers import FeedShare
from springtide.domain.plan.profile import ModelFacts, Profile
from springtide.domain.spec.planning_config import Feature, PlanningIdentity, PlanningStage


class FindingKind(StrEnum):
    """Kind of problem that a guard has found."""

    STRAGGLER = "straggler"
    SLOW_SERVER = "slow server"
    MEMORY = "memory"
    OOM = "out of memory"


MEMORY = (FindingKind.OOM, FindingKind.MEMORY)
"""Kinds of findings about memory, which are handled immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFinding:
    """Problem that a guard has found in one role."""

    trouble: FindingKind
    role: Role
    why: str
    servers: int | None = None
    """Number of servers that would suffice, if the guard knows the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleUse:
    """Recent resource usage of one worker or server, with the limits of the process."""

    role: Role
    cpu_used: float
    cpu: float
    """CPU limit in cores."""
    memory_used: int = 0
    memory: int = 0
    """Memory limit in bytes; 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTime:
    """Time from the request for a role until the role does useful work. Planning estimates the cost of a change from
    launch times."""

    kind: RoleKind
    cpu: float
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """Times of a job, and the samples that it has trained."""

    submitted_at: float = 0.0
    started_at: float | None = None
    last_change_at: float | None = None
    """Time of the last change of shape; None if the job still has its first shape."""
    samples_done: float = 0.0
    samples_total: float | None = None
    """Total samples; None if the job has no end or the end is unknown."""

    def __post_init__(self) -> None:
        if not self.samples_done >= 0:
            raise errors.BadInput(f"progress: {self.samples_done:g} samples done; expected 0 or more")

    @property
    def remaining(self) -> float:
        return math.inf if self.samples_total is None else max(0.0, self.samples_total - self.samples_done)

    def unchanged_s(self, *, at: float) -> float:
        since = self.last_change_at if self.last_change_at is not None else self.started_at
        return math.inf if since is None else at - since

    def shifted(self, by: float) -> "TrainingProgress":
        """Return the view with all times converted to a clock that is `by` seconds ahead."""
        times = {name: getattr(self, name) for name in ("submitted_at", "started_at", "last_change_at")}
        return replace(self, **{name: at + by for name, at in times.items() if at is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """State of one job, as the planner sees it."""

    name: str
    facts: ModelFacts
    bounds: ShapeBounds
    identity: PlanningIdentity = field(default_factory=PlanningIdentity)
    """User, priority and features of the job."""
    shape: Shape | None = None
    """Shape of the job at present; None if no role runs yet."""
    requested: Shape | None = None
    """Shape that the user requested, if any."""
    need: MemoryNeed = NO_NEED
    """Bytes that the roles need, if known."""
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    stage: PlanningStage = PlanningStage.WAITING
    profiles: tuple[Profile, ...] = ()
    uses: tuple[RoleUse, ...] = ()
    launches: tuple[LaunchTime, ...] = ()
    findings: tuple[GuardFinding, ...] = ()
    fed: FeedShare | None = None
    """Report on the job's data workers, if their number is tuned by measurement."""

    def __post_init__(self) -> None:
        if not self.name:
            raise errors.BadInput("a job without a name")

    def used_by(self, kind: RoleKind) -> tuple[RoleUse, ...]:
        return tuple(use for use in self.uses if use.role.kind is kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """Record of a job that has ended: the job's features, its first shape and its last shape.

    Programs other than Springtide may write to the database that stores these records. Features may therefore have any
    value. An invalid shape is read as None.
    """

    name: str
    user: str = ""
    features: Mapping[str, Feature] = field(default_factory=dict)
    initial: Shape | None = None
    shape: Shape | None = None
    """Last shape of the job."""
    finished: bool = True
    """True if the job reached its end; False if the job failed or was stopped."""
    ended_at: float = 0.0
    throughput: float | None = None
    need: MemoryNeed = NO_NEED
    facts: ModelFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Complete input of a policy. A master without a brain includes only its own job and machine."""

    now: float
    capacity: ResourceBudget
    """Total capacity of the cluster, including the resources that jobs already use."""
    jobs: tuple[JobView, ...] = ()
    history: tuple[PastJob, ...] = ()
    launches: tuple[LaunchTime, ...] = ()

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise errors.BadInput("cluster: two jobs have the same name; expected unique names")
