"""Messages between a trainer and a data worker, beside batches.

In: dataworker/feed/connections.py is the trainer's side, dataworker/feed/worker.py the data worker's. Next:
dataworker/transport/channel.py carries them.

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
    """Make the batch of these samples."""

    step: int
    indices: bytes
    """Little-endian int64."""
    name: BatchName | None
    asks: tuple[int, ...] = ()
    """Leaves that this trainer needs besides what a split has found (dataworker/split/program/payload.py)."""


class DropBatch(FeedMessage, frozen=True):
    """Nobody waits for it any more."""

    step: int


class BatchMade(FeedMessage, frozen=True):
    """Here is the batch, under its name."""

    step: int
    name: BatchName | None


class BatchFailed(FeedMessage, frozen=True):
    """The user's code raised."""

    step: int
    why: str


class BatchDropped(FeedMessage, frozen=True):
    """The batch was dropped, as asked."""

    step: int


class WorkerLeaving(FeedMessage, frozen=True):
    """Ask for no more batches; open requests are still answered."""


KINDS: tuple[type[FeedMessage], ...] = (AskBatch, DropBatch, BatchMade, BatchFailed, BatchDropped, WorkerLeaving)
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def number(word: FeedMessage) -> int:
    """The kind of a word, as a channel carries it."""
    return _NUMBERS[type(word)]


def read(kind: int, fields: Any) -> FeedMessage:
    """The word that came; `BadFrame` for anything that is none."""
    if not 0 <= kind < len(KINDS):
        raise BadFrame(f"a message of kind {kind}: wanted 0 to {len(KINDS) - 1}")
    try:
        return msgspec.convert(fields, KINDS[kind])
    except msgspec.ValidationError as error:
        raise BadFrame(f"not a {KINDS[kind].__name__}: {error}") from error
