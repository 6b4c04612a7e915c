"""Messages by which workers of a job agree: barriers, small values for all, and what must be done once.

In: `worker.link.master_link`. Next: `master.data.shared_values` answers. All of them are part of
`rpc.messages.messages`.
"""

from springtide.rpc.messages.types import RpcMessage


class BarrierRequest(RpcMessage, frozen=True):
    """Answered when every worker has come to the barrier of this name for the `turn`-th time."""

    name: str
    turn: int = 0


class ShareRequest(RpcMessage, frozen=True):
    """Put a small value where the other workers find it."""

    key: str
    value: bytes


class ValueRequest(RpcMessage, frozen=True):
    """Answered with the value once somebody has shared it."""

    key: str


class ClaimRequest(RpcMessage, frozen=True):
    """Something must be done once in the job, such as giving tables their first weights: am I to do it?

    Answered with `Claimed` as soon as that is known: at once by whoever asks first, to others when it is done, or when
    the one that did it was lost and another must.
    """

    key: str


class ClaimDone(RpcMessage, frozen=True):
    """What this worker had claimed is done."""

    key: str


class ValueFound(RpcMessage, frozen=True):
    """What `Lookup` asked for."""

    value: bytes


class ClaimReply(RpcMessage, frozen=True):
    """Whether the asker is to do it; if not, it is done."""

    yours: bool
