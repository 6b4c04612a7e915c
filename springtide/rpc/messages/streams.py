"""Messages about streams: where batches of partitions are cut that did not fill up in time.

In: `worker.online`, at the live head of a partition. Next: `master.data.leases` notes them in the book, and answers
when they are in the journal: only then may such a batch be trained. Both are part of `rpc.messages.messages`.
"""

from springtide.domain.data.streams import BatchCut
from springtide.rpc.messages.types import RpcMessage


class CutRequest(RpcMessage, frozen=True):
    """Batches of my leases are to end there. Answered with `CutsNoted`; asking again does no harm."""

    cuts: tuple[BatchCut, ...]
    era: int = 0
    """Of the leases."""


class CutsNoted(RpcMessage, frozen=True):
    """The cuts that count from now on, whoever reads the partition. Those that are missing were not the asker's."""

    cuts: tuple[BatchCut, ...]
    era: int = 0
