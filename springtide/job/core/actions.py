"""Pure. Actions that the master must take after an event. In: `job.state`. Next: `master.dispatcher` executes them."""

from dataclasses import dataclass

from springtide.domain.core.roles import Role
from springtide.domain.spec.job_spec import Blame, JobPhase


@dataclass(frozen=True, slots=True)
class PlaceSlots:
    """All servers listen at these addresses, by rank. Place the slots, and let servers and workers start."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server and its slots are lost. A checkpoint under way cannot complete. A new incarnation will be launched."""

    role: Role
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class ServerReturned:
    """The new incarnation of a server is ready at this address."""

    role: Role
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class FenceWorker:
    """Fence this incarnation of a worker: return its leases, and ignore its later messages."""

    role: Role
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Roll the job back to the last checkpoint: hand out again all data leased since then."""

    anew: bool
    """True if there is no checkpoint. All data is handed out again, and tables get their initial values again."""


@dataclass(frozen=True, slots=True)
class ServerLeft:
    """A drained server has no slots left and exits."""

    role: Role


@dataclass(frozen=True, slots=True)
class LogDecision:
    """Record a decision in the event log and the status."""

    what: str
    why: str
    told: bool = False
    """True if the event log already has the decision."""


@dataclass(frozen=True, slots=True)
class PlanCompleted:
    """The job has reached the shape of its plan."""

    shape: str
    why: str


@dataclass(frozen=True, slots=True)
class DrainWorkers:
    """Let workers finish their current batch and stop."""

    why: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: notify everything that waits for its end."""

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
