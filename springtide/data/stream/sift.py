"""Which records of a batch can be trained: those too large, damaged, late or undecodable are told apart, never fatal.

In: raw records of one batch, of train/online/. Out: a batch of the rest, and a letter for each that is left out.
Late means that a record was appended long after it happened: both are told by the record, no clock is asked, so whoever
reads a batch again leaves out the same records. Next: dead_letters.py keeps the letters.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from springtide import errors
from springtide.data.stream import envelope
from springtide.data.stream.decode import Decoder, Parsed, Unreadable
from springtide.data.stream.records import Floats, Mask, Records

OVERSIZED, CORRUPT, LATE = "oversized", "corrupt", "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is left out."""

    max_record_bytes: int | None = None
    """Larger ones, envelope included."""
    max_lateness_s: float | None = None
    """Ones that were appended more than so many seconds after they happened."""

    def __post_init__(self) -> None:
        for name in ("max_record_bytes", "max_lateness_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise errors.BadInput(f"{name}={value}: give 0 or more, or None for no limit")


class Letter(NamedTuple):
    """A record that is not trained."""

    partition: int
    offset: int
    why: str
    """"oversized", "corrupt" or "late"."""
    detail: str
    appended_at: float
    event_at: float
    """NaN when not known."""
    body: bytes
    """As it came, envelope included; of large ones the beginning."""
    size: int


@dataclass(frozen=True, slots=True)
class Made:
    """What became of the records of one batch."""

    batch: Any
    """None when none can be trained."""
    records: int
    """How many are in it."""
    event_at: Floats
    """When those happened: of records that do not tell, when they were appended."""
    letters: list[Letter]


KEPT_BYTES = 64 * 1024  # of the bytes of a dead letter


def batch_of(partition: int, records: Records, rules: Rules, decoder: Decoder) -> Made:
    """A batch of the records that can be trained, letters for the others."""
    opened = envelope.unseal(records)
    why = np.full(len(records), "", dtype="U9")
    details: dict[int, str] = {}
    if rules.max_record_bytes is not None:
        why[records.sizes > rules.max_record_bytes] = OVERSIZED
    why[opened.damaged & (why == "")] = CORRUPT
    whole = why == ""
    parsed = decoder.parse(opened.bodies[whole] if not whole.all() else opened.bodies)
    places = np.flatnonzero(whole)
    why[places[parsed.bad]] = CORRUPT
    event_at = _happened(opened.event_at, parsed, places)
    if rules.max_lateness_s is not None:
        with np.errstate(invalid="ignore"):
            why[(records.appended_at - event_at > rules.max_lateness_s) & (why == "")] = LATE
    batch = _decoded(parsed, why, places, details)
    keep = why == ""
    happened = np.where(np.isnan(event_at), records.appended_at, event_at)[keep]
    letters = [] if keep.all() else _letters(partition, records, event_at, why, opened.damaged, details)
    return Made(batch, int(keep.sum()), happened, letters)


def _decoded(parsed: Parsed, why: Any, places: Any, details: dict[int, str]) -> Any:
    """The batch; records that only decoding shows to be bad are noted on the way."""
    while True:
        keep: Mask = why[places] == ""
        if not keep.any():
            return None
        try:
            return parsed.batch(keep)
        except Unreadable as found:
            bad = places[found.bad & keep]
            why[bad] = CORRUPT
            details.update(dict.fromkeys(bad.tolist(), str(found)))


def _happened(told: Floats, parsed: Parsed, places: Any) -> Floats:
    """What the envelope says, else what the record says."""
    own = parsed.event_at
    if own is None:
        return told
    event_at = told.copy()
    event_at[places] = np.where(np.isnan(told[places]), own, told[places])
    return event_at


def _letters(
    partition: int, records: Records, event_at: Floats, why: Any, damaged: Mask, details: dict[int, str]
) -> list[Letter]:
    letters = []
    for i in np.flatnonzero(why != "").tolist():
        size, reason = int(records.ends[i] - records.starts[i]), str(why[i])
        detail = details.get(i, "")
        if reason == CORRUPT and not detail:
            detail = "its checksum does not fit" if damaged[i] else "it cannot be decoded"
        elif reason == LATE:
            detail = f"appended {records.appended_at[i] - event_at[i]:.3f} s after it happened"
        body = records.payload[records.starts[i] : records.starts[i] + min(size, KEPT_BYTES)].tobytes()
        happened = float(event_at[i])
        appended = float(records.appended_at[i])
        letters.append(Letter(partition, int(records.offsets[i]), reason, detail, appended, happened, body, size))
    return letters
