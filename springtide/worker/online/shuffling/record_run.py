"""A batch of a stream before decoding: raw records of one partition with their claim.

In: worker/online/ cuts it from what it reads, or a peer has sent it. Next: worker/online/shuffling/shuffle_unit.py
keeps or sends it.
"""

from dataclasses import dataclass

from springtide.data.stream.records import Records
from springtide.worker.link.lease_tracker import BatchClaim


@dataclass(frozen=True, slots=True)
class RecordRun:
    """One batch. Its claim is its identity: shard, begin and end never mean other records."""

    claim: BatchClaim
    partition: int
    records: Records
    owner: str = ""
    """The worker that has its lease and sent it; empty: this one."""
