"""Sort out records that cannot be trained: oversized, damaged, late or undecodable ones become dead letters.

In: raw records of one batch, from worker/online/. Out: a batch of the rest, and a letter for each that is left out. A
record is late if it was appended long after it happened. The record tells both times and no clock is read, so every
reader of a batch leaves out the same records. Next: dead_letters.py keeps the letters.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.stream import envelope
from springtide.data.stream.decode import Decoder, ParsedRecords, UndecodableRecords
from springtide.data.stream.records import Floats, Ints, Mask, Records

OVERSIZED, CORRUPT, LATE = "oversized", "corrupt", "late"
_FINE, _OVERSIZED, _CORRUPT, _LATE = range(4)
_REASONS = ("", OVERSIZED, CORRUPT, LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Limits beyond which records are left out."""

    max_record_bytes: int | None = None
    """Largest record, envelope included."""
    max_lateness_s: float | None = None
    """Most seconds from the event to the append."""

    def __post_init__(self) -> None:
        for name in ("max_record_bytes", "max_lateness_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise errors.BadInput(f"{name}={value}: give 0 or more, or None for no limit")


class DeadLetter(NamedTuple):
    """A record that is not trained."""

    partition: int
    offset: int
    why: str
    """"oversized", "corrupt" or "late"."""
    detail: str
    appended_at: float
    event_at: float
    """NaN if unknown."""
    body: bytes
    """The bytes as received, envelope included; of large ones the beginning."""
    size: int


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """The trainable records of one batch, and letters for the others."""

    batch: Any
    """None if no record can be trained."""
    records: int
    """Records in the batch."""
    event_at: Floats
    """When those happened; for records that do not tell, when they were appended."""
    letters: list[DeadLetter]


KEPT_BYTES = 64 * 1024  # of the bytes of a dead letter


def batch_of(partition: int, records: Records, rules: FilterRules, decoder: Decoder) -> FilteredBatch:
    opened = envelope.unseal(records)
    why = np.zeros(len(records), np.uint8)
    if rules.max_record_bytes is not None:
        _note(why, records.sizes > rules.max_record_bytes, _OVERSIZED)
    if opened.any_damaged:
        _note(why, opened.damaged, _CORRUPT)
    places = None if not why.any() else np.flatnonzero(why == _FINE)  # positions of the parsed records; None: all are
    parsed = decoder.parse(opened.bodies if places is None else opened.bodies[places])
    _note(why, parsed.bad, _CORRUPT, places)
    event_at = opened.event_at if parsed.event_at is None else _happened(opened.event_at, parsed.event_at, places)
    if rules.max_lateness_s is not None:  # without an event time the difference is NaN: never late
        _note(why, records.appended_at - event_at > rules.max_lateness_s, _LATE)
    details: dict[int, str] = {}
    batch = _decoded(parsed, why, places, details)
    happened = np.where(np.isnan(event_at), records.appended_at, event_at) if opened.bare else event_at
    if not why.any():
        return FilteredBatch(batch, len(records), happened, [])
    letters = _letters(partition, records, event_at, why, opened.damaged, details, rules)
    return FilteredBatch(batch, len(records) - len(letters), happened[why == _FINE], letters)


def _note(why: NDArray[np.uint8], which: Mask, reason: int, places: Ints | None = None) -> None:
    """Mark these records (of those at `places`) with this reason, unless they have another."""
    if which.any():
        positions = np.flatnonzero(which) if places is None else places[which]
        why[positions[why[positions] == _FINE]] = reason


def _decoded(parsed: ParsedRecords, why: NDArray[np.uint8], places: Ints | None, details: dict[int, str]) -> Any:
    """Decode the batch; mark records that turn out to be undecodable on the way."""
    while True:
        keep: Mask = (why if places is None else why[places]) == _FINE
        if not keep.any():
            return None
        try:
            return parsed.batch(keep)
        except UndecodableRecords as found:
            bad = found.bad & keep
            details.update(
                dict.fromkeys(np.flatnonzero(bad).tolist() if places is None else places[bad].tolist(), str(found))
            )
            _note(why, bad, _CORRUPT, places)


def _happened(sealed: Floats, own: Floats, places: Ints | None) -> Floats:
    """The event time of the envelope, else of the record."""
    if places is None:
        return np.where(np.isnan(sealed), own, sealed)
    event_at = sealed.copy()
    event_at[places] = np.where(np.isnan(sealed[places]), own, sealed[places])
    return event_at


def _letters(
    partition: int,
    records: Records,
    event_at: Floats,
    why: NDArray[np.uint8],
    damaged: Mask,
    details: dict[int, str],
    rules: FilterRules,
) -> list[DeadLetter]:
    letters = []
    for i in np.flatnonzero(why).tolist():
        size, reason = int(records.ends[i] - records.starts[i]), _REASONS[why[i]]
        detail = details.get(i, "")
        if reason == CORRUPT and not detail:
            detail = "its checksum does not fit" if damaged[i] else "it cannot be decoded"
        elif reason == OVERSIZED:
            detail = f"{size} bytes, {rules.max_record_bytes} are the most"
        elif reason == LATE:
            detail = f"appended {records.appended_at[i] - event_at[i]:.3f} s after it happened"
        body = records.payload[records.starts[i] : records.starts[i] + min(size, KEPT_BYTES)].tobytes()
        happened = float(event_at[i])
        appended = float(records.appended_at[i])
        letters.append(DeadLetter(partition, int(records.offsets[i]), reason, detail, appended, happened, body, size))
    return letters
