"""Pure. What our own producers put around a record: 16 bytes that tell when it happened and whether it is whole.

    f5 'S' 'T' version | CRC-32 of the rest | event time in microseconds, 8 bytes | body      (little-endian)

Text never begins with byte f5, so records of other producers are told apart, and taken as they are: those have no event
time of their own here. In: produce.py seals. Out: sift.py opens, without copying bodies.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from springtide.data.stream.records import Bytes, Floats, Ints, Mask, Records, view_of

MARK = b"\xf5ST\x01"
HEAD = np.dtype([("mark", "S4"), ("crc", "<u4"), ("event_us", "<i8")])
SIZE = HEAD.itemsize
CRC_FROM = 8  # bytes before what the CRC covers


class Opened(NamedTuple):
    """Records without their envelopes."""

    bodies: Records
    event_at: Floats
    """When each happened, time of day in seconds; NaN where there was no envelope."""
    damaged: Mask
    """Those whose bytes are not what was sealed."""


def seal(bodies: Sequence[bytes], event_at: Sequence[float]) -> list[bytes]:
    """Each body in its envelope."""
    sealed = []
    for body, at in zip(bodies, event_at, strict=True):
        rest = round(at * 1e6).to_bytes(8, "little", signed=True) + body
        sealed.append(MARK + zlib.crc32(rest).to_bytes(4, "little") + rest)
    return sealed


def seal_rows(rows: Bytes, event_us: Ints) -> tuple[Bytes, Ints]:
    """Bodies of one size, as rows, in their envelopes: the payload, and where each record ends in it."""
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


def unseal(records: Records) -> Opened:
    """Take envelopes off, where there are any."""
    count = len(records)
    wrapped, heads = _heads(records)
    event_at = np.full(count, np.nan)
    damaged = np.zeros(count, np.bool_)
    if not wrapped.any():
        return Opened(records, event_at, damaged)
    crcs = crc_each(records.payload, records.starts[wrapped] + CRC_FROM, records.ends[wrapped])
    event_at[wrapped] = heads["event_us"] / 1e6
    damaged[wrapped] = crcs != heads["crc"]
    starts = records.starts + np.where(wrapped, SIZE, 0)
    bodies = Records(records.payload, starts, records.ends, records.offsets, records.appended_at)
    return Opened(bodies, event_at, damaged)


def crc_each(payload: Bytes, starts: Ints, ends: Ints) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """CRC-32 (as zlib has it) of each run of bytes."""
    view, crc = view_of(payload), zlib.crc32
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.fromiter((crc(view[a:b]) for a, b in places), np.uint32, len(starts))


def _heads(records: Records) -> tuple[Mask, np.ndarray[tuple[int], np.dtype[np.void]]]:
    """Which records have an envelope, and what is on those."""
    rows = records.rows()
    if rows is not None and rows.shape[1] >= SIZE:
        raw = np.ascontiguousarray(rows[:, :SIZE])
        wrapped = np.all(raw[:, :4] == np.frombuffer(MARK, np.uint8), axis=1)
    else:
        large = np.flatnonzero(records.sizes >= SIZE)
        raw = records.payload[records.starts[large][:, None] + np.arange(SIZE)]
        marked = np.all(raw[:, :4] == np.frombuffer(MARK, np.uint8), axis=1)
        wrapped = np.zeros(len(records), np.bool_)
        wrapped[large[marked]] = True
        raw = raw[marked]
        return wrapped, np.ascontiguousarray(raw).view(HEAD).reshape(-1)
    return wrapped, raw[wrapped].view(HEAD).reshape(-1)
