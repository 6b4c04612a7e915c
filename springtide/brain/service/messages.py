"""Messages between masters and a served brain. The handshake is the handshake of `rpc.messages.messages`."""

import msgspec

from springtide.domain.core.shape import ResourceBudget, Shape
from springtide.domain.plan.plan import Advice
from springtide.domain.plan.view import JobView, PastJob
from springtide.rpc.messages.messages import Ok, RequestRefused
from springtide.rpc.messages.types import RpcMessage
from springtide.rpc.transport.connection import Callee

BRAIN_ROLE, ASKING_ROLE = "brain", "master"

# ---- requests ----


class Consult(RpcMessage, frozen=True):
    """Request for advice on a job that is not being rescaled. The reply is `Counsel`, within seconds."""

    view: JobView
    epoch: int
    now: float
    """Time of the master's clock; the times in the view come from the same clock."""
    key: str = ""
    """Identifier of the run, which distinguishes jobs that have the same name. A restarted master sends the same
    key."""


class ConcludeJob(RpcMessage, frozen=True):
    """Report of a finished job, for the history."""

    past: PastJob
    key: str = ""


class Inspect(RpcMessage, frozen=True):
    """Request for the brain's state. The reply is `BrainStatus`."""


class Recall(RpcMessage, frozen=True):
    """Request for past jobs. The reply is `Recalled`."""

    newest: int = 20


class ResizeExecutors(RpcMessage, frozen=True):
    """Request to change the number of executors."""

    executors: int


# ---- replies ----


class Counsel(RpcMessage, frozen=True):
    """Advice of the brain to one job."""

    advice: Advice


class LiveJob(RpcMessage, frozen=True):
    """A live job as the brain sees it."""

    name: str
    user: str
    stage: str
    shape: Shape | None
    seen_s: float
    """Seconds since the job's last view."""
    event: str = ""
    """Event behind the brain's last decision on the job."""
    cause: str = ""
    policy: str = ""
    why: str = ""
    promised: Shape | None = None


class ExecutorCount(msgspec.Struct, frozen=True):
    """Executors of the brain."""

    wanted: int
    """Target number of executors. A running executor has a pid in `pids`."""
    pids: tuple[int, ...] = ()
    lost: int = 0
    """Number of executors that ended without a reply; other executors took over their tasks."""


class BrainStatus(RpcMessage, frozen=True):
    """State of the whole brain at one moment."""

    address: str
    pid: int
    up_s: float
    database: str
    capacity: ResourceBudget
    held: ResourceBudget
    """Sum over all jobs of the larger of held and promised resources."""
    executors: ExecutorCount
    policies: dict[str, str] = msgspec.field(default_factory=dict)
    jobs: tuple[LiveJob, ...] = ()
    past: int = 0
    unreadable: int = 0
    consults: int = 0
    decisions: int = 0
    decision_s: float = 0.0
    """Duration of the last decision, in seconds."""
    trouble: str = ""
    """Last problem with the database or an executor."""


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
    """The reply to the request with the same number."""

    id: int
    body: Reply


CALLS = msgspec.msgpack.Decoder(BrainCall)
BRAIN = Callee("brain", msgspec.msgpack.Decoder(BrainReturn), tls="SPRINGTIDE_BRAIN_TLS")
