"""Messages between workers that shuffle a stream: msgpack frames with checked types and sizes.

In: worker/online/shuffling/peers.py. Nothing is unpickled: records travel in the byte format of data/stream/records.py,
and the receiver checks them again. The calling worker sends its name and its batches. The called worker answers whether
it accepts batches, and reports the outcome of each batch.
"""

import msgspec

from springtide import errors
from springtide.data.stream import records
from springtide.rpc.transport import frames
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.online.shuffling.record_run import RecordRun

PLANE = "shuffle-"
"""Prefix of the authentication proofs of this connection (`rpc.transport.auth`). Proofs of the control plane are
invalid here.
"""
MAX_BYTES = 80 * 2**20  # exceeds the largest sendable batch (shuffle_unit.SENDABLE_BYTES) with offsets and times
MAX_WORD_BYTES = 2**20  # limit of all other messages


class PeerMessage(msgspec.Struct, array_like=True, frozen=True):
    """Base of all messages between peers."""


class PeerHello(PeerMessage, frozen=True, tag=0):
    """Name of the calling worker, such as `worker-2.0`."""

    name: str


class BatchForwarded(PeerMessage, frozen=True, tag=1):
    """Batch of the calling worker, for the called worker to train."""

    claim: BatchClaim
    partition: int
    records: bytes


class PeerAlive(PeerMessage, frozen=True, tag=2):
    """Keep-alive message."""


class PeerReady(PeerMessage, frozen=True, tag=3):
    """Whether the called worker accepts batches. It sends this message first, and after every change."""

    ready: bool


class BatchTrained(PeerMessage, frozen=True, tag=4):
    """Batches of the calling worker that the called worker has trained."""

    claims: tuple[BatchClaim, ...]
    void: tuple[int, ...]
    """Number of offsets without a trainable record, for each batch."""


class BatchReturned(PeerMessage, frozen=True, tag=5):
    """Batches of the calling worker that the called worker gives back untrained."""

    claims: tuple[BatchClaim, ...]


from_caller: "msgspec.msgpack.Decoder[PeerHello | BatchForwarded | PeerAlive]" = msgspec.msgpack.Decoder(
    PeerHello | BatchForwarded | PeerAlive
)
from_called: "msgspec.msgpack.Decoder[PeerAlive | PeerReady | BatchTrained | BatchReturned]" = msgspec.msgpack.Decoder(
    PeerAlive | PeerReady | BatchTrained | BatchReturned
)


def batch_of(run: RecordRun) -> bytes:
    return frames.pack(BatchForwarded(run.claim, run.partition, run.records.to_bytes()), limit=MAX_BYTES)


def run_of(batch: BatchForwarded, owner: str) -> RecordRun:
    """Return the received batch; `BadFrame` if it is invalid or does not match its claim."""
    claim = batch.claim
    if not (0 <= claim.first <= claim.begin < claim.end and claim.shard >= 0 and batch.partition >= 0):
        raise frames.BadFrame(f"{owner} sent a batch with the claim {claim} of partition {batch.partition}")
    try:
        came = records.from_bytes(batch.records)
    except errors.SpringtideError as error:
        raise frames.BadFrame(f"{owner} sent a batch that cannot be read: {error}") from error
    if len(came) and not (claim.begin <= int(came.offsets[0]) and int(came.offsets[-1]) < claim.end):
        raise frames.BadFrame(f"{owner} sent records that lie outside of their claim {claim}")
    return RecordRun(claim, batch.partition, came, owner)
