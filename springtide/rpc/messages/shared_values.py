"""Messages with which workers coordinate: barriers, small shared values, and tasks to do once.

In: `worker.link.master_link`. Next: `master.data.shared_values` answers. `rpc.messages.messages` includes all of them.
"""

from springtide.rpc.messages.types import RpcMessage


class BarrierRequest(RpcMessage, frozen=True):
    """Answered when every worker has reached the barrier of this name for the `turn`-th time."""

    name: str
    turn: int = 0


class ShareRequest(RpcMessage, frozen=True):
    """Share a small value with the other workers."""

    key: str
    value: bytes


class ValueRequest(RpcMessage, frozen=True):
    """Asks for a shared value. Answered once some worker has shared it."""

    key: str


class ClaimRequest(RpcMessage, frozen=True):
    """Claims a task that must be done once in the job, such as initializing the weights of tables.

    Answered with `ClaimReply`. The first worker gets its answer at once. Other workers wait until the task is done, or
    until the claimant is lost and another worker must take over.
    """

    key: str


class ClaimDone(RpcMessage, frozen=True):
    """The worker has finished the task that it had claimed."""

    key: str


class ValueFound(RpcMessage, frozen=True):
    """The value that a `ValueRequest` asked for."""

    value: bytes


class ClaimReply(RpcMessage, frozen=True):
    """Whether the asking worker must do the task. If not, the task is done."""

    yours: bool
