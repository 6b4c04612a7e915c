"""Messages between masters and a brain that serves many of them. The handshake is the one of `rpc.messages.messages`.

In: a master shows its job, or says that it is over; a person looks inside. Out: advice. Next: `brain.service.client`
asks, `brain.service.service` answers.
"""

import msgspec

from springtide.domain.core.shape import ResourceBudget, Shape
from springtide.domain.plan.plan import Advice
from springtide.domain.plan.view import JobView, PastJob
from springtide.rpc.messages.messages import Ok, RequestRefused
from springtide.rpc.messages.types import RpcMessage
from springtide.rpc.transport.connection import Callee

# ---- requests ----


class Consult(RpcMessage, frozen=True):
    """What should this job change? Asked when nothing of it is being changed; answered with `Counsel`, in seconds."""

    view: JobView
    epoch: int
    now: float
    """By the master's own clock, which the times in its view are of."""
    key: str = ""
    """Tells jobs of one name apart: which run it is. A master that is started again says the same."""


class ConcludeJob(RpcMessage, frozen=True):
    """A job is over; it is to be remembered."""

    past: PastJob
    key: str = ""


class Inspect(RpcMessage, frozen=True):
    """How is the brain? Answered with `BrainStatus`."""


class Recall(RpcMessage, frozen=True):
    """Which jobs does it remember? Answered with `Recalled`."""

    newest: int = 20


class ResizeExecutors(RpcMessage, frozen=True):
    """Work with so many executors from now on."""

    executors: int


# ---- replies ----


class Counsel(RpcMessage, frozen=True):
    """What the brain says to one job."""

    advice: Advice


class LiveJob(RpcMessage, frozen=True):
    """One job as the brain knows it."""

    name: str
    user: str
    stage: str
    shape: Shape | None
    seen_s: float
    """Seconds since it was shown last."""
    event: str = ""
    """What was new with it when the brain last decided on it..."""
    cause: str = ""
    """...and why, as its optimizer sees it."""
    policy: str = ""
    why: str = ""
    """Of the last advice."""
    promised: Shape | None = None
    """What it was told to become and has not become yet."""


class BrainStatus(RpcMessage, frozen=True):
    """The whole brain at one moment."""

    address: str
    pid: int
    up_s: float
    database: str
    capacity: ResourceBudget
    held: ResourceBudget
    """What all jobs have or were promised, the larger of both."""
    executors: int
    """How many are wanted; those at work have a pid."""
    executor_pids: tuple[int, ...] = ()
    executors_lost: int = 0
    """Ended before they had answered; their work was done by others."""
    policies: dict[str, str] = msgspec.field(default_factory=dict)
    """By event."""
    jobs: tuple[LiveJob, ...] = ()
    past: int = 0
    unreadable: int = 0
    """Past jobs that make no sense."""
    consults: int = 0
    decisions: int = 0
    decision_s: float = 0.0
    """How long the last one took."""
    trouble: str = ""
    """The last thing that went wrong with the database or an executor."""


class Recalled(RpcMessage, frozen=True):
    """The newest past jobs, oldest first."""

    jobs: tuple[PastJob, ...]
    unreadable: int = 0
    total: int = 0


Request = Consult | ConcludeJob | Inspect | Recall | ResizeExecutors
Reply = Counsel | Ok | BrainStatus | Recalled | RequestRefused


class BrainCall(msgspec.Struct, frozen=True, array_like=True):
    """A numbered request."""

    id: int
    body: Request


class BrainReturn(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the request of that number."""

    id: int
    body: Reply


CALLS = msgspec.msgpack.Decoder(BrainCall)
BRAIN = Callee("brain", msgspec.msgpack.Decoder(BrainReturn), tls="SPRINGTIDE_BRAIN_TLS")
