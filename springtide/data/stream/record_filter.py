"""Removes records that cannot be trained (oversized, damaged, late or undecodable), and stores them as dead letters.

In: the raw records of a batch, from worker/online/. Out: a batch of the remaining records, and a letter for each
removed record, in a folder or a stream. A record is late if it was appended long after its event time. Both times are
in the record, and the filter reads no clock, so every reader of a batch removes the same records.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.stream.decode import Decoder, ParsedRecords, UndecodableRecords
from springtide.data.stream.records import Floats, Ints, Mask, Records, unseal
from springtide.data.stream.stream import StreamWriter, open_stream

OVERSIZED, CORRUPT, LATE = "oversized", "corrupt", "late"
_FINE, _OVERSIZED, _CORRUPT, _LATE = range(4)
_REASONS = ("", OVERSIZED, CORRUPT, LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Limits beyond which records are removed."""

    max_record_bytes: int | None = None
    """Size of the largest record, including its envelope."""
    max_lateness_s: float | None = None
    """Longest time from the event to the append, in seconds."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that workers do not train. As a line of JSON, such a record is one dead letter."""

    partition: int
    offset: int
    why: str
    """"oversized", "corrupt" or "late"."""
    detail: str
    appended_at: float
    event_at: float
    """Event time of the record; NaN if unknown."""
    size: int = msgspec.field(name="bytes")
    """Bytes of the record, including the envelope."""
    body: bytes
    """Received bytes of the record; for a large record only the beginning."""


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """The trainable records of a batch, and a dead letter for each untrainable record."""

    batch: Any
    """The batch; None if no record can be trained."""
    records: int
    event_at: Floats
    """Event times of these records, or append times of records without an event time."""
    letters: list[DeadLetter]


KEPT_BYTES = 64 * 1024  # most bytes of a record in a dead letter


def batch_of(partition: int, records: Records, rules: FilterRules, decoder: Decoder) -> FilteredBatch:
    opened = unseal(records)
    why = np.zeros(len(records), np.uint8)
    if rules.max_record_bytes is not None:
        _mark(why, records.sizes > rules.max_record_bytes, _OVERSIZED)
    if opened.any_damaged:
        _mark(why, opened.damaged, _CORRUPT)
    # positions of the records that remain; None if all remain
    places = None if not why.any() else np.flatnonzero(why == _FINE)
    parsed = decoder.parse(opened.bodies if places is None else opened.bodies[places])
    _mark(why, parsed.bad, _CORRUPT, places)
    event_at = opened.event_at if parsed.event_at is None else _event_times(opened.event_at, parsed.event_at, places)
    # for a record without an event time the difference is NaN, and NaN never exceeds the limit
    if rules.max_lateness_s is not None:
        _mark(why, records.appended_at - event_at > rules.max_lateness_s, _LATE)
    details: dict[int, str] = {}
    batch = _decoded(parsed, why, places, details)
    happened = np.where(np.isnan(event_at), records.appended_at, event_at) if opened.bare else event_at
    if not why.any():
        return FilteredBatch(batch, len(records), happened, [])
    letters = _letters(partition, records, event_at, why, opened.damaged, details, rules)
    return FilteredBatch(batch, len(records) - len(letters), happened[why == _FINE], letters)


def _mark(why: NDArray[np.uint8], which: Mask, reason: int, places: Ints | None = None) -> None:
    """Give the records at `places` this reason for removal. A record with an earlier reason keeps it."""
    if which.any():
        positions = np.flatnonzero(which) if places is None else places[which]
        why[positions[why[positions] == _FINE]] = reason


def _decoded(parsed: ParsedRecords, why: NDArray[np.uint8], places: Ints | None, details: dict[int, str]) -> Any:
    """Decode the batch. Mark records that turn out to be undecodable."""
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
            _mark(why, bad, _CORRUPT, places)


def _event_times(sealed: Floats, own: Floats, places: Ints | None) -> Floats:
    """Return each record's event time, from the envelope or, without an envelope, from the record."""
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
            detail = "its checksum does not match" if damaged[i] else "it cannot be decoded"
        elif reason == OVERSIZED:
            detail = f"{size} bytes; the limit is {rules.max_record_bytes}"
        elif reason == LATE:
            detail = f"appended {records.appended_at[i] - event_at[i]:.3f} s after its event time"
        body = records.payload[records.starts[i] : records.starts[i] + min(size, KEPT_BYTES)].tobytes()
        happened = float(event_at[i])
        appended = float(records.appended_at[i])
        letters.append(DeadLetter(partition, int(records.offsets[i]), reason, detail, appended, happened, size, body))
    return letters


# most bytes of dead letters per process: some hundred thousand letters, so that a stream of bad records fills no disk
MOST_BYTES = 256 * 2**20


class DeadLetters:
    """Destination of dead letters. If the destination fails or is full, further letters are lost, but the job
    continues."""

    def __init__(self, where: str | None, *, most_bytes: int = MOST_BYTES) -> None:
        """Open the destination: a folder or the URL of a stream. With None, only count the letters. Raise UserError for
        an invalid destination."""
        self.lost = 0
        """Number of letters that could not be stored."""
        self.why = ""
        """First error; empty while all letters were stored."""
        self.path: Path | None = None
        """File of JSON lines of this process, created with the first letter."""
        self._writer: StreamWriter | None = None
        self._partitions = 0
        self._most = self._left = most_bytes
        if where is None:
            return
        if "://" in where:
            stream = open_stream(where)
            self._writer, self._partitions = stream.writer(), stream.partitions()
            return
        try:
            Path(where).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.BadInput(f"dead letters cannot go to {where}: {error.strerror}; give a folder") from None
        self.path = Path(where) / f"dead-{socket.gethostname()}-{os.getpid()}.jsonl"

    def add(self, letters: Sequence[DeadLetter]) -> None:
        if self.path is None and self._writer is None:
            return
        lines: list[bytes] = []
        for line in map(line_of, letters):
            if len(line) > self._left:
                self._left = 0
                why = f"{self._most / 2**20:g} MiB of letters are the limit for one process"
                self._lose(len(letters) - len(lines), why)
                break
            self._left -= len(line)
            lines.append(line)
        if self._writer is not None:
            for letter, line in zip(letters, lines, strict=False):
                try:
                    self._writer.append(letter.partition % self._partitions, line, np.array([len(line)]))
                except (errors.SpringtideError, OSError) as error:
                    self._lose(1, str(error))
        elif self.path is not None and lines:
            try:
                with self.path.open("ab") as file:
                    file.write(b"".join(lines))
            except OSError as error:
                self._lose(len(lines), f"{self.path} cannot be written: {error.strerror}")

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except (errors.SpringtideError, OSError) as error:
            self._lose(1, str(error))

    def _lose(self, count: int, why: str) -> None:
        self.lost, self.why = self.lost + count, self.why or why


def line_of(letter: DeadLetter) -> bytes:
    return msgspec.json.encode(letter) + b"\n"
