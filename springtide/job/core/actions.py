"""Pure. What the master must do after an event. In: `job.state`. Next: `master.dispatcher` does it."""

from dataclasses import dataclass

from springtide.domain.core.roles import Role
from springtide.domain.spec.job_spec import Blame, JobPhase


@dataclass(frozen=True, slots=True)
class PlaceSlots:
    """All servers listen, at these addresses by rank: lay out the slots, let servers and workers go."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server is gone with what it held; its next life will be wanted. A checkpoint under way cannot be completed."""

    role: Role
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class ServerReturned:
    """The next life of a server is ready at this address."""

    role: Role
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class FenceWorker:
    """This life of a worker is over for the master: its leases go back, and what it says later changes nothing."""

    role: Role
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """All go back to the last checkpoint: what was handed out since is to be handed out again."""

    anew: bool
    """There is none: all is to be handed out again, and tables get their first values again."""


@dataclass(frozen=True, slots=True)
class ServerLeft:
    """A server has nothing any more, and goes."""

    role: Role


@dataclass(frozen=True, slots=True)
class LogDecision:
    """Something was decided that the story and the status should tell."""

    what: str
    why: str
    told: bool = False
    """The story has it already."""


@dataclass(frozen=True, slots=True)
class PlanCompleted:
    """The job has the shape that its plan asked for."""

    shape: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainWorkers:
    """Let workers finish the batch in hand and stop."""

    why: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: tell whoever waits."""

    phase: JobPhase
    why: str
    blame: Blame


Action = (
    PlaceSlots
    | ServerLost
    | ServerReturned
    | FenceWorker
    | RollBack
    | ServerLeft
    | LogDecision
    | PlanCompleted
    | DrainWorkers
    | EndJob
)
