"""Messages between a trainer and a data worker, beside batches.

In: dataworker/feed/connections.py is the trainer's side, dataworker/feed/worker.py the data worker's side. Next:
dataworker/transport/channel.py carries the messages.

    trainer: AskBatch, DropBatch
    data worker: BatchMade (with the batch), BatchFailed or BatchDropped for every AskBatch; WorkerLeaving
"""

from typing import Any

import msgspec

from springtide.domain.data.data_workers import BatchName
from springtide.rpc.transport.frames import BadFrame


class FeedMessage(msgspec.Struct, array_like=True, frozen=True):
    """Base of all messages."""


class AskBatch(FeedMessage, frozen=True):
    """Request the batch of these samples."""

    step: int
    indices: bytes
    """Sample indices, little-endian int64."""
    name: BatchName | None
    asks: tuple[int, ...] = ()
    """Leaves that this trainer needs in addition to those of the split (dataworker/split/program/payload.py)."""


class DropBatch(FeedMessage, frozen=True):
    """Cancel a request: the trainer no longer needs the batch."""

    step: int


class BatchMade(FeedMessage, frozen=True):
    """The batch, under its requested name."""

    step: int
    name: BatchName | None


class BatchFailed(FeedMessage, frozen=True):
    """Report that user code raised."""

    step: int
    why: str


class BatchDropped(FeedMessage, frozen=True):
    """Confirm that the batch was dropped."""

    step: int


class WorkerLeaving(FeedMessage, frozen=True):
    """Announce that this data worker accepts no more requests. It still answers open requests."""


KINDS: tuple[type[FeedMessage], ...] = (AskBatch, DropBatch, BatchMade, BatchFailed, BatchDropped, WorkerLeaving)
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def number(word: FeedMessage) -> int:
    """Return the number of a message's type, as a channel carries it."""
    return _NUMBERS[type(word)]


def read(kind: int, fields: Any) -> FeedMessage:
    """Decode a message; raise `BadFrame` if it is invalid."""
    if not 0 <= kind < len(KINDS):
        raise BadFrame(f"a message of kind {kind}: wanted 0 to {len(KINDS) - 1}")
    try:
        return msgspec.convert(fields, KINDS[kind])
    except msgspec.ValidationError as error:
        raise BadFrame(f"not a {KINDS[kind].__name__}: {error}") from error
