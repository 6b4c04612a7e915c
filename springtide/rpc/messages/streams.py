"""Messages about streams: early ends of batches that did not fill in time.

In: `worker.online`, at the live head of a partition. Next: `master.data.leases` enters the cuts in the ledger, and
answers once they are journaled. Only then may a worker train such a batch. `rpc.messages.messages` includes both.
"""

from springtide.domain.data.streams import BatchCut
from springtide.rpc.messages.types import RpcMessage


class CutRequest(RpcMessage, frozen=True):
    """End batches of these leases early. Answered with `CutsNoted`. Asking again does no harm."""

    cuts: tuple[BatchCut, ...]
    era: int = 0
    """Era of the leases."""


class CutsNoted(RpcMessage, frozen=True):
    """Cuts that are valid from now on, for every reader of the partition. Cuts of leases that the worker lacks are
    omitted.
    """

    cuts: tuple[BatchCut, ...]
    era: int = 0
