"""What a trainer and a data worker say to each other, beside batches: one small record for every kind of message.

In: dataworker/feed/connections.py speaks for the trainer, dataworker/feed/worker.py for the data worker. Next:
dataworker/transport/channel.py carries them.

    trainer: Ask, Drop          data worker: Made (with the batch), Failed, Dropped, one of them for every Ask; Leaving
"""

from typing import Any

import msgspec

from springtide.domain.data.data_workers import BatchName
from springtide.rpc.transport.frames import BadFrame


class FeedMessage(msgspec.Struct, array_like=True, frozen=True):
    """Any of them."""


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
    """Here is the batch; it has its name on it."""

    step: int
    name: BatchName | None


class BatchFailed(FeedMessage, frozen=True):
    """The user's code raised."""

    step: int
    why: str


class BatchDropped(FeedMessage, frozen=True):
    """As you said."""

    step: int


class WorkerLeaving(FeedMessage, frozen=True):
    """Ask me no more; I answer what I have been asked, then I go."""


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
