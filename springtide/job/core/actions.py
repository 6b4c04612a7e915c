"""Pure. Actions that the master must take after an event. In: `job.state`. Next: `master.dispatcher` executes them."""

import msgspec

from springtide.domain.core.roles import Role
from springtide.domain.spec.job_spec import Blame, JobPhase


class JobAction(msgspec.Struct, frozen=True):
    """Base class of all actions."""


class PlaceSlots(JobAction, frozen=True):
    """All servers listen, at these addresses by rank. The master places the slots, and lets servers and workers
    start."""

    addresses: tuple[str, ...]


class ServerLost(JobAction, frozen=True):
    """A server and its slots are lost. A checkpoint in progress cannot be completed. A new incarnation will be
    launched.
    """

    role: Role
    incarnation: int
    why: str


class ServerReturned(JobAction, frozen=True):
    """The new incarnation of a lost server is ready at this address."""

    role: Role
    incarnation: int
    address: str


class FenceWorker(JobAction, frozen=True):
    """Fence this incarnation of a worker: return its leases, and ignore its later messages."""

    role: Role
    incarnation: int
    why: str


class RollBack(JobAction, frozen=True):
    """Roll the job back to the last checkpoint: requeue all data that was leased since then."""

    anew: bool
    """True if the job has no checkpoint. All data is requeued, and tables get their initial values again."""


class ServerLeft(JobAction, frozen=True):
    """A drained server has no slots left and exits."""

    role: Role


class LogDecision(JobAction, frozen=True):
    """Record a decision in the event log and the status."""

    what: str
    why: str
    told: bool = False


class PlanCompleted(JobAction, frozen=True):
    """The job has reached the shape of its plan."""

    shape: str
    why: str


class DrainWorkers(JobAction, frozen=True):
    """Let workers finish their current batch and stop."""

    why: str


class EndJob(JobAction, frozen=True):
    """The job is over: notify everything that waits for the end of the job."""

    phase: JobPhase
    why: str
    blame: Blame
