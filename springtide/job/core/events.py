"""Pure. Events that a job's state machine handles. `master` creates events from messages and the clock.

An event about a process names its incarnation, so that late news of an earlier incarnation changes nothing.
"""

import msgspec

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import StageTarget
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import Blame
from springtide.domain.spec.planning_config import PlanningStage


class JobEvent(msgspec.Struct, frozen=True, tag=True):
    """Base class of all events."""


class RoleJoined(JobEvent, frozen=True):
    """A process has joined, or has joined again over a new connection."""

    role: Role
    incarnation: int = 0
    pid: int = 0
    birth: int = 0
    """Random number that the process drew at its start."""


class RoleReady(JobEvent, frozen=True):
    """A server that has restored its slots, or a data worker, listens at `address`."""

    role: Role
    address: str
    incarnation: int = 0


class RoleAlive(JobEvent, frozen=True):
    """A role has sent a heartbeat."""

    role: Role
    incarnation: int = 0


class ScriptFinished(JobEvent, frozen=True):
    """A worker's script ended without an error."""

    role: Role
    incarnation: int = 0
    untrained: int = 0
    """Number of shards that are neither trained nor given up."""
    poisoned: str = ""
    """Description of the first shard that the job gave up because it could not be read."""


class ScriptFailed(JobEvent, frozen=True):
    """A worker's script raised an exception."""

    role: Role
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    incarnation: int = 0


class RoleExited(JobEvent, frozen=True):
    """A process has exited, as its agent reports."""

    exit: RoleExit


class CheckpointSaved(JobEvent, frozen=True):
    """A checkpoint is complete. If a server is lost after this event, it can be restored from this checkpoint."""

    number: int


class WorkersScaled(JobEvent, frozen=True):
    """Change the job's number of workers."""

    workers: int
    why: str
    planned: bool = False
    """True for a step of the current plan. Any other change drops the plan."""
    pinned: bool = False
    """True if the user set the number. Later plans then keep the number."""


class ServersScaled(JobEvent, frozen=True):
    """Change the job's number of servers."""

    servers: int
    why: str
    planned: bool = False
    pinned: bool = False


class BoundsChanged(JobEvent, frozen=True):
    """Change the bounds within which plans choose the numbers of workers and servers. None leaves a bound unchanged."""

    workers: tuple[int, int] | None
    servers: tuple[int, int] | None
    why: str


class RolesResized(JobEvent, frozen=True):
    """Change the CPU and memory limits of all workers or all servers, running and future."""

    kind: RoleKind
    cpu: float | None
    memory: int | None
    why: str


class PlanTaken(JobEvent, frozen=True):
    """Adopt a plan: the job moves to this shape, one move at a time."""

    shape: Shape
    stage: PlanningStage
    why: str


class PlanEnded(JobEvent, frozen=True):
    """A plan ended, for the given reason: it is complete, it is impossible, or the job needs no change."""

    stage: PlanningStage
    why: str = ""


class PlanAdvanced(JobEvent, frozen=True):
    """All roles match the wanted state, so the next move of the plan may start."""

    largest_group: int | None = None
    """Largest number of workers that can share every batch; None means no limit."""


class ServerReplaced(JobEvent, frozen=True):
    """Replace this server with a new server."""

    rank: int
    why: str
    at_once: bool = False
    """True if the server's peers take its slots immediately, instead of waiting for the new server."""


class EvictionNoticed(JobEvent, frozen=True):
    """The host of this process will soon evict the process."""

    role: Role
    incarnation: int
    why: str
    empty: bool = False
    """For a server, True if other servers own all its slots and every worker uses a placement without it."""


class ServerEmptied(JobEvent, frozen=True):
    """A draining server has no slots left, and every worker uses a placement without it."""

    role: Role


class DataWorkersScaled(JobEvent, frozen=True):
    """Change the number of data workers and their cores."""

    count: int
    cpu: float | None
    why: str
    pinned: bool = False
    """True if the user set the number. Tuning leaves such a number unchanged."""
    stages: tuple[StageTarget, ...] = ()
    """Target of each stage, first to last, if the job has several stages. `count` is their total."""


class DataWorkersRefused(JobEvent, frozen=True):
    """Trainers cannot give their data program to data workers, so workers read the data themselves."""

    why: str


class BspBegan(JobEvent, frozen=True):
    """The workers train as a bsp group. No worker can be replaced alone."""


class GroupFormed(JobEvent, frozen=True):
    """These workers are the bsp group from now on. Other workers that waited to join a group may leave."""

    members: tuple[LeaseHolder, ...]
    why: str


class GroupLost(JobEvent, frozen=True):
    """The bsp group cannot continue. An empty reason means that the group has lost all copies of its dense
    parameters."""

    why: str = ""


class StopRequested(JobEvent, frozen=True):
    """The user asked the job to stop."""

    why: str


class MasterFailed(JobEvent, frozen=True):
    """The master cannot continue, for example because the disk is full."""

    error: str


class MasterTookOver(JobEvent, frozen=True):
    """A new master took over from the journal. While no master ran, no heartbeat could arrive."""

    term: int


class FinalCheckpointDone(JobEvent, frozen=True):
    """All workers have ended. The final checkpoint is complete, not needed, or failed."""

    outcome: str


class RoleSilent(JobEvent, frozen=True):
    """A role has missed heartbeats for too long. `JobState.due` creates this event, like all events that depend on the
    clock.
    """

    role: Role
    incarnation: int
    silent_s: float


class RoleLate(JobEvent, frozen=True):
    """A role has not joined in time."""

    role: Role
    incarnation: int
    silent_s: float


class DrainOverdue(JobEvent, frozen=True):
    """A worker that scaling removes has not exited in time."""

    role: Role
    incarnation: int


class DecisionMade(JobEvent, frozen=True):
    """A decision that changes no role: about leases (`job.stragglers`), slots, or the job's size."""

    what: str
    why: str
    told: bool = False
    """True if the event log already has the decision, with more detail."""


class SuspicionExpired(JobEvent, frozen=True):
    """A symptom was not explained in time by the exit of another process."""
