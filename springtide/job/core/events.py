"""Pure. Events that a job's state machine handles.

In: `master.dispatcher` makes events from messages and the clock. Next: `job.state`. An event about a process names its
incarnation, so that news of an earlier incarnation changes nothing.
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
    """A process has joined, or has joined again over a new connection."""

    role: Role
    incarnation: int = 0
    pid: int = 0
    birth: int = 0
    """Random number that the process drew at its start."""


@dataclass(frozen=True, slots=True)
class RoleReady:
    """A server listens at `address` after restoring its slots, or a data worker listens there."""

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
    """A worker's script ended without an error."""

    role: Role
    incarnation: int = 0
    untrained: int = 0
    """Number of shards that are neither trained nor given up."""
    poisoned: str = ""
    """Description of the first shard that was given up."""


@dataclass(frozen=True, slots=True)
class ScriptFailed:
    """A worker's script raised an exception."""

    role: Role
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class RoleExited:
    """A process has exited, as its agent reports."""

    exit: RoleExit


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is complete. Servers lost from now on can be restored from it."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkersScaled:
    """Change the job's number of workers."""

    workers: int
    why: str
    planned: bool = False
    """True for a move of the current plan. Any other change drops the plan."""
    pinned: bool = False
    """True if the user set the number. Plans then keep it."""
    extra: int = 0
    """Number of low-priority workers beyond the quota, among `workers`."""


@dataclass(frozen=True, slots=True)
class ServersScaled:
    """Change the job's number of servers."""

    servers: int
    why: str
    planned: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class BoundsChanged:
    """Change the least and most workers and servers that plans may use. None leaves a bound unchanged."""

    workers: tuple[int, int] | None
    servers: tuple[int, int] | None
    why: str


@dataclass(frozen=True, slots=True)
class RolesResized:
    """Change the CPU and memory limits of all workers or all servers, running and future."""

    kind: RoleKind
    cpu: float | None
    memory: int | None
    why: str


@dataclass(frozen=True, slots=True)
class PlanTaken:
    """Adopt a plan: the job moves to this shape, one move at a time."""

    shape: Shape
    stage: PlanningStage
    why: str
    servers_first: bool = False
    cpus: tuple[tuple[int, float], ...] = ()
    """CPU limits of servers that differ from the shape, by rank."""
    extra_workers: int = 0
    """Number of low-priority workers in addition to the shape's workers."""


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """The plan was carried out, or cannot be, with the reason. A job that was measured and stays unchanged ends its
    plan too.
    """

    stage: PlanningStage
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlanAdvanced:
    """All roles match the wanted state, so the next move of the plan may start."""

    largest_group: int | None = None
    """Largest number of workers that can share every batch; None if there is no limit."""


@dataclass(frozen=True, slots=True)
class ServerReplaced:
    """Replace this server with a new server."""

    rank: int
    why: str
    at_once: bool = False
    """True if peers take the slots at once, instead of waiting for the new server."""


@dataclass(frozen=True, slots=True)
class EvictionNoticed:
    """The host of this process will evict it soon."""

    role: Role
    incarnation: int
    why: str
    empty: bool = False
    """For a server: True if other servers own all its slots and every worker knows it."""


@dataclass(frozen=True, slots=True)
class ServerGranted:
    """Change the limits of one server, for this and later incarnations. Limits may rise or fall."""

    rank: int
    cpu: float | None
    """CPU limit in cores; None if the server has no limit and gets none."""
    why: str
    memory: int | None = None
    """Memory limit in bytes; None leaves the limit unchanged."""


@dataclass(frozen=True, slots=True)
class ServerEmptied:
    """A draining server has no slots left, and every worker knows it."""

    role: Role


@dataclass(frozen=True, slots=True)
class DataWorkersScaled:
    """Change the number of data workers and their cores."""

    count: int
    cpu: float | None
    """CPU limit of each data worker in cores; None for no limit."""
    why: str
    pinned: bool = False
    """True if the user set the number. Tuning then leaves it unchanged."""
    stages: tuple[StageTarget, ...] = ()
    """Target of each stage, first to last, if the data program has several stages. `count` is the total over all
    stages."""


@dataclass(frozen=True, slots=True)
class DataWorkersRefused:
    """Trainers cannot hand their data program to data workers, so workers read data themselves."""

    why: str


@dataclass(frozen=True, slots=True)
class BspBegan:
    """The workers train as a bsp group. No worker can be replaced alone."""


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """These workers are the bsp group from now on. Workers that waited with them but are not members may leave."""

    members: tuple[LeaseHolder, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The bsp group cannot continue. An empty reason means that all copies of its dense parameters are lost."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The user asked the job to stop."""

    why: str


@dataclass(frozen=True, slots=True)
class MasterFailed:
    """The master cannot continue, for example because the disk is full."""

    error: str


@dataclass(frozen=True, slots=True)
class MasterTookOver:
    """A new master took over from the journal. No heartbeat could arrive in the meantime."""

    term: int


@dataclass(frozen=True, slots=True)
class FinalCheckpointDone:
    """All workers have ended, and the final checkpoint is complete, not needed, or failed."""

    outcome: str


@dataclass(frozen=True, slots=True)
class RoleSilent:
    """A role has missed heartbeats for too long. `JobState.due` makes this and other events of the clock."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class RoleLate:
    """A role has not joined in time."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class DrainOverdue:
    """A worker that scaling removes has not exited in time."""

    role: Role
    incarnation: int


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A decision that changes no role: about leases (`job.stragglers.stragglers`), slots, or the job's size."""

    what: str
    why: str
    told: bool = False
    """True if the event log already has the decision, with more detail."""


@dataclass(frozen=True, slots=True)
class SuspicionExpired:
    """No exit of another process has explained a symptom in time."""


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
