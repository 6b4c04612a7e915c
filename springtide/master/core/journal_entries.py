"""What the journal is made of: everything that changes the record of a job, one small struct a change.

In: `master.dispatcher` makes them of messages, of the clock and of decisions. Next: `master.core.record` applies them,
now and again after a restart; `master.core.journal` keeps them.
"""

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
    """Base of all entries."""


class EventEntry(JournalEntry, frozen=True):
    """An event for the job's state machine."""

    at: float
    kind: str
    what: dict[str, Any]


class LeaseEntry(JournalEntry, frozen=True):
    """A worker asks for leases."""

    holder: LeaseHolder
    card: DatasetCard
    most: int
    at: float
    known: tuple[LeaseKey, ...]
    era: int = 0
    seen: tuple[PartitionRange, ...] = ()
    """What is new of the partitions of a stream."""


class ReportEntry(JournalEntry, frozen=True):
    """A worker says how far it is."""

    holder: LeaseHolder
    words: tuple[Progress, ...]
    at: float
    era: int = 0


class EndEntry(JournalEntry, frozen=True):
    """A worker has found the end of a data set without a length."""

    holder: LeaseHolder
    card: DatasetCard
    samples: int


class CutEntry(JournalEntry, frozen=True):
    """Batches of a stream end there, though they are not full."""

    holder: LeaseHolder
    cuts: tuple[streams.BatchCut, ...]
    era: int = 0


class StretchEntry(JournalEntry, frozen=True):
    """A bsp group trains this of a stream next, in the pass that has this shard."""

    rank: int
    shard: int
    stretch: OffsetRange


class AssignEntry(JournalEntry, frozen=True):
    """Partitions of a stream, by shard, are meant for other ranks."""

    owners: tuple[tuple[int, int], ...]


class FailEntry(JournalEntry, frozen=True):
    """A worker cannot read part of a lease."""

    holder: LeaseHolder
    failure: ReadFailure


class ExpireEntry(JournalEntry, frozen=True):
    """Leases whose deadline has passed."""

    keys: tuple[LeaseKey, ...]


class RestoreEntry(JournalEntry, frozen=True):
    """Slots of a lost server were restored from the checkpoint that began with this note."""

    note: JobProgress
    objects: dict[int, dict[str, bytes]] | None = None
    """Where all scripts begin anew: the states of their objects in that checkpoint. None: scripts go on."""
    places: dict[int, EpochPlace] = {}
    """And the places that they begin with."""


class KeepEntry(JournalEntry, frozen=True):
    """The checkpoint that began with this note is complete."""

    note: JobProgress
    floors: bool = True
    """Whether the job need never go back behind it."""


class ResumeEntry(JournalEntry, frozen=True):
    """The job goes on from a checkpoint of another run, which began with this note and had these things done."""

    note: JobProgress
    claims: tuple[str, ...]
    objects: dict[int, dict[str, bytes]] = {}
    places: dict[int, EpochPlace] = {}


class HaltEntry(JournalEntry, frozen=True):
    """The bsp group is to change before the next shard."""


class ResizeEntry(JournalEntry, frozen=True):
    """A rank's leases have another size from now on."""

    rank: int
    halvings: int


class ShortenEntry(JournalEntry, frozen=True):
    """A lease should end sooner."""

    wish: ShrinkRequest


class ShareEntry(JournalEntry, frozen=True):
    """A small value for all workers."""

    key: str
    value: bytes


class ObjectsEntry(JournalEntry, frozen=True):
    """States of a worker's own objects."""

    rank: int
    objects: dict[str, bytes]
    place: EpochPlace | None = None


class ClaimEntry(JournalEntry, frozen=True):
    """A worker wants to do what must be done once."""

    key: str
    holder: LeaseHolder


class SettleEntry(JournalEntry, frozen=True):
    """It has done it."""

    key: str
    holder: LeaseHolder


class LeftOutEntry(JournalEntry, frozen=True):
    """A batch was trained without samples that cannot be made."""

    left_out: LeftOut


class MovedEntry(JournalEntry, frozen=True):
    """Slots are another server's."""

    slots: tuple[int, ...]
    server: int


class BarrierEntry(JournalEntry, frozen=True):
    """Every worker has come to a barrier for the `turn`-th time."""

    name: str
    turn: int


AnyEntry = (
    EventEntry
    | LeaseEntry
    | ReportEntry
    | EndEntry
    | CutEntry
    | StretchEntry
    | AssignEntry
    | FailEntry
    | ExpireEntry
    | RestoreEntry
    | KeepEntry
    | ResumeEntry
    | HaltEntry
    | ResizeEntry
    | ShortenEntry
    | ShareEntry
    | ClaimEntry
    | SettleEntry
    | BarrierEntry
    | MovedEntry
    | ObjectsEntry
    | LeftOutEntry
)

_EVENTS: dict[str, type[events.Event]] = {kind.__name__: kind for kind in events.Event.__args__}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEntry)


def event_entry(event: events.Event, at: float) -> EventEntry:
    """An event as an entry."""
    return EventEntry(at, type(event).__name__, msgspec.to_builtins(event))


def event_of(entry: EventEntry) -> events.Event:
    """The event in an entry."""
    event: events.Event = msgspec.convert(entry.what, type=_EVENTS[entry.kind])
    return event


def encode(entry: AnyEntry) -> bytes:
    """An entry for the journal."""
    return _encoder.encode(entry)


def decode(body: bytes) -> AnyEntry:
    """An entry from the journal."""
    entry: AnyEntry = _decoder.decode(body)
    return entry
