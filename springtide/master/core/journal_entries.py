"""Journal entries: one small struct for each kind of change to a job's record, applied by `master.core.record`."""

import functools
import operator
from typing import Any

import msgspec

from springtide.data.ledger.bsp_ledger import OffsetRange
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data import streams
from springtide.domain.data.data_workers import LeftOut
from springtide.domain.data.leases import LeaseHolder, LeaseKey, Progress, ReadFailure, ShrinkRequest
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.data.streams import PartitionRange
from springtide.job.core import events


class JournalEntry(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of all entries."""


class EventEntry(JournalEntry, frozen=True):
    """An event for the job's state machine."""

    at: float
    kind: str
    what: dict[str, Any]


class LeaseEntry(JournalEntry, frozen=True):
    """A worker requested leases."""

    holder: LeaseHolder
    card: DatasetCard
    most: int
    at: float
    known: tuple[LeaseKey, ...]
    era: int = 0
    seen: tuple[PartitionRange, ...] = ()
    """New partitions and offsets of a stream since the last entry."""


class ReportEntry(JournalEntry, frozen=True):
    """A worker reported its progress."""

    holder: LeaseHolder
    words: tuple[Progress, ...]
    at: float
    era: int = 0


class EndEntry(JournalEntry, frozen=True):
    """A worker found the end of a data set of unknown length."""

    holder: LeaseHolder
    card: DatasetCard
    samples: int


class CutEntry(JournalEntry, frozen=True):
    """Batches of a stream end at these offsets, although the batches are not full."""

    holder: LeaseHolder
    cuts: tuple[streams.BatchCut, ...]
    era: int = 0


class StretchEntry(JournalEntry, frozen=True):
    """A bsp group reads this range of a stream next, in the pass that has this shard."""

    rank: int
    shard: int
    stretch: OffsetRange


class AssignEntry(JournalEntry, frozen=True):
    """Stream partitions, by shard, moved to other ranks."""

    owners: tuple[tuple[int, int], ...]


class FailEntry(JournalEntry, frozen=True):
    """A worker could not read a part of a lease."""

    holder: LeaseHolder
    failure: ReadFailure


class ExpireEntry(JournalEntry, frozen=True):
    """Leases that expired."""

    keys: tuple[LeaseKey, ...]


class RestoreEntry(JournalEntry, frozen=True):
    """Slots of a lost server were restored from the checkpoint that began with this note."""

    note: JobProgress
    objects: dict[int, dict[str, bytes]] | None = None
    """States of registered objects in that checkpoint, if all scripts restart; None if the scripts continue."""
    places: dict[int, EpochPlace] = {}


class KeepEntry(JournalEntry, frozen=True):
    """The checkpoint that began with this note is complete."""

    note: JobProgress
    floors: bool = True
    """True if the job never needs to roll back beyond this checkpoint."""


class ResumeEntry(JournalEntry, frozen=True):
    """The job resumes from a checkpoint of another run, with its note and finished claims."""

    note: JobProgress
    claims: tuple[str, ...]
    objects: dict[int, dict[str, bytes]] = {}
    places: dict[int, EpochPlace] = {}


class HaltEntry(JournalEntry, frozen=True):
    """The bsp group must change before the next shard."""


class ResizeEntry(JournalEntry, frozen=True):
    """The leases of a rank get a new size."""

    rank: int
    halvings: int


class ShortenEntry(JournalEntry, frozen=True):
    """The master asks for an earlier end of a lease."""

    wish: ShrinkRequest


class ShareEntry(JournalEntry, frozen=True):
    """A worker shared a small value with all workers."""

    key: str
    value: bytes


class ObjectsEntry(JournalEntry, frozen=True):
    """States of a worker's registered objects."""

    rank: int
    objects: dict[str, bytes]
    place: EpochPlace | None = None


class ClaimEntry(JournalEntry, frozen=True):
    """A worker claimed a task that must be done once."""

    key: str
    holder: LeaseHolder


class SettleEntry(JournalEntry, frozen=True):
    """A worker finished the task that it had claimed."""

    key: str
    holder: LeaseHolder


class LeftOutEntry(JournalEntry, frozen=True):
    """A worker trained a batch without samples that could not be produced."""

    left_out: LeftOut


class MovedEntry(JournalEntry, frozen=True):
    """Slots moved to another server."""

    slots: tuple[int, ...]
    server: int


class BarrierEntry(JournalEntry, frozen=True):
    """Every worker has reached a barrier for the `turn`-th time."""

    name: str
    turn: int


_EVENTS: dict[str, type[events.JobEvent]] = {kind.__name__: kind for kind in events.JobEvent.__subclasses__()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(functools.reduce(operator.or_, JournalEntry.__subclasses__()))


def event_entry(event: events.JobEvent, at: float) -> EventEntry:
    return EventEntry(at, type(event).__name__, msgspec.to_builtins(event))


def event_of(entry: EventEntry) -> events.JobEvent:
    event: events.JobEvent = msgspec.convert(entry.what, type=_EVENTS[entry.kind])
    return event


def encode(entry: JournalEntry) -> bytes:
    return _encoder.encode(entry)


def decode(body: bytes) -> JournalEntry:
    entry: JournalEntry = _decoder.decode(body)
    return entry
