"""Pure. What can happen to a job. In: `master.dispatcher` makes them of messages and of the clock. Next: `job.state`.

Whatever a process says or suffers names its incarnation: news of an earlier life changes nothing.
"""

from dataclasses import dataclass

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import StageTarget
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import Blame
from springtide.domain.spec.planning_config import PlanningStage


@dataclass(frozen=True, slots=True)
class RoleJoined:
    """A process has called in, perhaps again over a new connection."""

    role: Role
    incarnation: int = 0
    pid: int = 0
    birth: int = 0
    """Drawn by that process when it began."""


@dataclass(frozen=True, slots=True)
class RoleReady:
    """A server listens at `address`, having restored its slots where it has any; or a data worker does."""

    role: Role
    address: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class RoleAlive:
    """A role has sent a heartbeat."""

    role: Role
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class ScriptFinished:
    """A worker's script has ended well."""

    role: Role
    incarnation: int = 0
    untrained: int = 0
    """Shards that are neither trained nor given up now."""
    poisoned: str = ""
    """The first of the shards that had to be given up, in words."""


@dataclass(frozen=True, slots=True)
class ScriptFailed:
    """A worker's script has raised."""

    role: Role
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class RoleExited:
    """A process has ended, says the agent that started it."""

    exit: RoleExit


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is complete: a server that is lost from now on can be restored from it."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkersScaled:
    """The job is to have so many workers from now on."""

    workers: int
    why: str
    planned: bool = False
    """A move of the plan that is being carried out; otherwise somebody else wants it, and the plan is dropped."""
    pinned: bool = False
    """The user wants it so: plans keep to it."""
    extra: int = 0
    """Of them, those of low priority beyond the quota."""


@dataclass(frozen=True, slots=True)
class ServersScaled:
    """The job is to have so many servers from now on."""

    servers: int
    why: str
    planned: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class BoundsChanged:
    """Plans have so many workers and servers from now on, from and to each; None: as before."""

    workers: tuple[int, int] | None
    servers: tuple[int, int] | None
    why: str


@dataclass(frozen=True, slots=True)
class RolesResized:
    """All workers, or all servers, may take so much from now on: those that run, and those to come."""

    kind: RoleKind
    cpu: float | None
    memory: int | None
    why: str


@dataclass(frozen=True, slots=True)
class PlanTaken:
    """The job is to get this shape, one move after the other."""

    shape: Shape
    stage: PlanningStage
    why: str
    servers_first: bool = False
    cpus: tuple[tuple[int, float], ...] = ()
    """Servers by rank that are to have other cores than the shape says."""
    extra_workers: int = 0
    """Workers of low priority beside those of the shape."""


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """The plan has been carried out, or cannot be: why not. A job that was measured and stays as it is ends one too."""

    stage: PlanningStage
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlanAdvanced:
    """All roles are as wanted: the next move of the plan may be made."""

    largest_group: int | None = None
    """Most workers that can share every batch; None: any number can."""


@dataclass(frozen=True, slots=True)
class ServerReplaced:
    """Another server is to take the place of this one."""

    rank: int
    why: str
    at_once: bool = False
    """Its slots do not wait for that one: its peers have them meanwhile."""


@dataclass(frozen=True, slots=True)
class EvictionNoticed:
    """The host of this process takes it away soon."""

    role: Role
    incarnation: int
    why: str
    empty: bool = False
    """Of a server: its slots are with others, and every worker knows."""


@dataclass(frozen=True, slots=True)
class ServerGranted:
    """A server may use so much from now on, in this life and the next: more than before, or less again."""

    rank: int
    cpu: float | None
    """None: it has no limit, and gets none."""
    why: str
    memory: int | None = None
    """Bytes; None: as it has."""


@dataclass(frozen=True, slots=True)
class ServerEmptied:
    """A server that drains has no slots left, and every worker knows."""

    role: Role


@dataclass(frozen=True, slots=True)
class DataWorkersScaled:
    """The job is to have so many data workers from now on, with so many cores each."""

    count: int
    cpu: float | None
    """None: as many cores as there are."""
    why: str
    pinned: bool = False
    """The user wants it so: tuning leaves them alone."""
    stages: tuple[StageTarget, ...] = ()
    """Where what they do is cut into several stages: of each, first to last; `count` is of all together."""


@dataclass(frozen=True, slots=True)
class DataWorkersRefused:
    """What data workers would do cannot be handed to them: workers read for themselves."""

    why: str


@dataclass(frozen=True, slots=True)
class BspBegan:
    """The workers form a bsp group: none can be replaced without the others."""


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """These workers are the bsp group from now on; those that waited with them and are not in it may go."""

    members: tuple[LeaseHolder, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The bsp group cannot go on from where it is; without a reason: nobody has its dense parameters any more."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The user wants the job to stop."""

    why: str


@dataclass(frozen=True, slots=True)
class MasterFailed:
    """The master itself cannot go on, for example because the disk is full."""

    error: str


@dataclass(frozen=True, slots=True)
class MasterTookOver:
    """A new master has taken over from the journal; nobody could be heard meanwhile."""

    term: int


@dataclass(frozen=True, slots=True)
class FinalCheckpointDone:
    """All workers have ended and the job's last checkpoint is dealt with: complete, not needed, or failed."""

    outcome: str


@dataclass(frozen=True, slots=True)
class RoleSilent:
    """A role that should send heartbeats has sent none for too long. What the clock says comes from `JobState.due`."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class RoleLate:
    """A role has not called in for too long."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class DrainOverdue:
    """A worker that scaling removes has not left in time."""

    role: Role
    incarnation: int


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """Something was decided that changes no role: about leases (`job.stragglers.stragglers`), slots, or the job's
    size.
    """

    what: str
    why: str
    told: bool = False
    """The story has it already, with more."""


@dataclass(frozen=True, slots=True)
class SuspicionExpired:
    """Nobody's end has explained a symptom."""


Event = (
    RoleJoined
    | RoleReady
    | RoleAlive
    | ScriptFinished
    | ScriptFailed
    | RoleExited
    | CheckpointSaved
    | WorkersScaled
    | ServersScaled
    | BoundsChanged
    | RolesResized
    | PlanTaken
    | PlanEnded
    | PlanAdvanced
    | ServerReplaced
    | EvictionNoticed
    | ServerGranted
    | ServerEmptied
    | DataWorkersScaled
    | DataWorkersRefused
    | BspBegan
    | GroupFormed
    | GroupLost
    | StopRequested
    | MasterFailed
    | MasterTookOver
    | FinalCheckpointDone
    | RoleSilent
    | RoleLate
    | DrainOverdue
    | SuspicionExpired
    | DecisionMade
)
