"""Pure. What can happen to a job. In: `master.desk` makes them of messages and of the clock. Next: `job.state`.

Whatever a process says or suffers names its incarnation: news of an earlier life changes nothing.
"""

from dataclasses import dataclass

from springtide.domain.cluster import Role, RoleExit
from springtide.domain.job import Blame
from springtide.domain.leases import Holder


@dataclass(frozen=True, slots=True)
class Joined:
    """A process has called in, perhaps again over a new connection."""

    role: Role
    incarnation: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A server listens at `address`, having restored its slots where it has any."""

    role: Role
    address: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """A role has sent a heartbeat."""

    role: Role
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker's script has ended well."""

    role: Role
    incarnation: int = 0
    untrained: int = 0
    """Shards that are neither trained nor given up now."""
    poisoned: str = ""
    """The first of the shards that had to be given up, in words."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's script has raised."""

    role: Role
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """A process has ended, says the agent that started it."""

    exit: RoleExit


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete: a server that is lost from now on can be restored from it."""

    number: int


@dataclass(frozen=True, slots=True)
class Scaled:
    """The job is to have so many workers from now on."""

    workers: int
    why: str


@dataclass(frozen=True, slots=True)
class ServersScaled:
    """The job is to have so many servers from now on."""

    servers: int
    why: str


@dataclass(frozen=True, slots=True)
class ServerReplaced:
    """Another server is to take the place of this one."""

    rank: int
    why: str
    at_once: bool = False
    """Its slots do not wait for that one: its peers have them meanwhile."""


@dataclass(frozen=True, slots=True)
class ServerGranted:
    """A server may use so many processors from now on, in this life and the next."""

    rank: int
    cpu: float
    why: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """A server that drains has no slots left, and every worker knows."""

    role: Role


@dataclass(frozen=True, slots=True)
class InStep:
    """The workers form a bsp group: none can be replaced without the others."""


@dataclass(frozen=True, slots=True)
class Formed:
    """These workers are the bsp group from now on; those that waited with them and are not in it may go."""

    members: tuple[Holder, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The bsp group cannot go on from where it is; without a reason: nobody has its dense parameters any more."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the job to stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The master itself cannot go on, for example because the disk is full."""

    error: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """A new master has taken over from the journal; nobody could be heard meanwhile."""

    term: int


@dataclass(frozen=True, slots=True)
class LastSaved:
    """All workers have ended and the job's last checkpoint is dealt with: complete, not needed, or failed."""

    outcome: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A role that should send heartbeats has sent none for too long. What the clock says comes from `JobState.due`."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Late:
    """A role has not called in for too long."""

    role: Role
    incarnation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Undrained:
    """A worker that scaling removes has not left in time."""

    role: Role
    incarnation: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Something was decided about the leases of a worker (`job.stragglers`)."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Nobody's end has explained a symptom."""


Event = (
    Joined
    | Ready
    | Heard
    | Finished
    | Failed
    | Gone
    | Saved
    | Scaled
    | ServersScaled
    | ServerReplaced
    | ServerGranted
    | Emptied
    | InStep
    | Formed
    | GroupLost
    | StopAsked
    | Broken
    | Recovered
    | LastSaved
    | Silent
    | Late
    | Undrained
    | Unexplained
    | Judged
)
