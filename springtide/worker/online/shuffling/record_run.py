"""A batch of a stream before decoding: raw records of one partition with their claim.

In: worker/online/ cuts the batch from the records it reads, or a peer has sent it. Next:
worker/online/shuffling/shuffle_unit.py keeps or sends it.
"""

from dataclasses import dataclass

from springtide.data.stream.records import Records
from springtide.worker.link.lease_tracker import BatchClaim


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Undecoded batch. Its claim is its identity: the same shard, begin and end always name the same records."""

    claim: BatchClaim
    partition: int
    records: Records
    owner: str = ""
    """Worker that holds the lease and sent the batch; empty for this worker."""
