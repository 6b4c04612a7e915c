"""Wrap records in our producers' envelope: 16 bytes with event time and checksum before the body.

    f5 'S' 'T' version | CRC-32 of the rest | event time in microseconds, 8 bytes | body      (little-endian)

Text never begins with byte f5, so records of other producers are recognised and used unchanged, without an event time.
In: produce.py seals records. Out: data/stream/record_filter.py unseals them, without copying bodies.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import _native
from springtide.data.stream.records import Bytes, Floats, Ints, Mask, Records

MARK = b"\xf5ST\x01"
HEAD = np.dtype([("mark", "S4"), ("crc", "<u4"), ("event_us", "<i8")])
SIZE = HEAD.itemsize
CRC_FROM = 8  # first byte that the CRC covers
BARE, WHOLE, DAMAGED = 0, 1, 2
"""State of a record: no envelope, an intact envelope, or a damaged one (cpp/batch/envelope.h)."""


class UnsealedRecords(NamedTuple):
    """Records without their envelopes."""

    bodies: Records
    event_at: Floats
    """Event time of each record, in seconds since 1970; NaN without an envelope."""
    damaged: Mask
    """Mask of the records with a wrong checksum."""
    bare: int
    """Number of records without an envelope."""
    any_damaged: bool


def seal(bodies: Sequence[bytes], event_at: Sequence[float]) -> list[bytes]:
    sealed = []
    for body, at in zip(bodies, event_at, strict=True):
        rest = round(at * 1e6).to_bytes(8, "little", signed=True) + body
        sealed.append(MARK + zlib.crc32(rest).to_bytes(4, "little") + rest)
    return sealed


def seal_rows(rows: Bytes, event_us: Ints) -> tuple[Bytes, Ints]:
    """Seal bodies of equal size, given as rows. Return the payload, and the end of each record in it."""
    count, size = rows.shape
    sealed = np.empty((count, SIZE + size), np.uint8)
    heads = sealed[:, :SIZE].copy().view(HEAD)[:, 0]
    heads["mark"], heads["crc"], heads["event_us"] = MARK, 0, event_us
    sealed[:, :SIZE] = heads.view(np.uint8).reshape(count, SIZE)
    sealed[:, SIZE:] = rows
    flat = sealed.reshape(-1)
    starts = np.arange(count, dtype=np.int64) * (SIZE + size)
    crcs = crc_each(flat, starts + CRC_FROM, starts + SIZE + size)
    sealed[:, 4:8] = crcs.astype("<u4").view(np.uint8).reshape(count, 4)
    return flat, starts + SIZE + size


def unseal(records: Records) -> UnsealedRecords:
    count = len(records)
    states, event_us = np.empty(count, np.uint8), np.empty(count, np.int64)
    starts, ends = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.ends)
    bare, damaged = _native.open_envelopes(records.payload, starts, ends, states, event_us)
    if bare == count:
        return UnsealedRecords(records, np.full(count, np.nan), np.zeros(count, np.bool_), bare, False)
    event_at = event_us / 1e6
    if bare:
        event_at[states == BARE] = np.nan
    inside = starts + (SIZE if not bare else np.where(states == BARE, 0, SIZE))
    bodies = Records(records.payload, inside, ends, records.offsets, records.appended_at)
    return UnsealedRecords(bodies, event_at, states == DAMAGED, bare, damaged > 0)


def crc_each(payload: Bytes, starts: Ints, ends: Ints) -> NDArray[np.uint32]:
    """Return the CRC-32 (zlib's) of each run of bytes."""
    out = np.empty(len(starts), np.uint32)
    _native.crc32_each(payload, np.ascontiguousarray(starts), np.ascontiguousarray(ends), out)
    return out
