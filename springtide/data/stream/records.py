"""Holds consecutive records of a partition as columns, so that no record needs a Python object and a slice copies
nothing.

In: log/reader.py and kafka/librdkafka.py fill the columns. Out: record_filter.py and decode.py read whole batches. A
worker sends `to_bytes` to a peer that trains the batch. `from_bytes` checks all sizes, and nothing is unpickled.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from springtide import _native, errors

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Buffer: TypeAlias = bytes | bytearray | memoryview | Bytes

MAGIC, VERSION = b"SREC", 2
HEADER = struct.Struct("<4sIqq")
"""Header: magic, version, number of records, payload bytes. Sizes, offsets, append times and the payload follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of a partition, with rising offsets. Record i is ``payload[starts[i]:ends[i]]``."""

    payload: Bytes
    """Buffer with the bytes of the records. The buffer may contain more, such as a part of a mapped file."""
    starts: Ints
    ends: Ints
    offsets: Ints
    appended_at: Floats
    """Append time of each record, in seconds since 1970."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, which: slice | Mask | Ints) -> "Records":
        """Select records by position. A slice copies nothing; a mask or positions copy the columns, not the payload."""
        return Records(self.payload, self.starts[which], self.ends[which], self.offsets[which], self.appended_at[which])

    @property
    def sizes(self) -> Ints:
        return self.ends - self.starts

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    def structs(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return the records as values of a structured type of this size, without a copy; None if a record has a
        different size.
        """
        grid = self._grid()
        if grid is None or grid[2] != dtype.itemsize:
            return None
        return np.ndarray((len(self),), dtype, self.payload.data, grid[0], (grid[1],))

    def between(self, first: int, end: int) -> "Records":
        """Return the records with ``first <= offset < end``, without a copy."""
        low, high = np.searchsorted(self.offsets, (first, end))
        return self[int(low) : int(high)]

    def bodies(self) -> list[bytes]:
        whole = self.payload.data
        return [bytes(whole[a:b]) for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def joined(self) -> Bytes:
        """Return the bytes of all records, joined; a view if they are stored contiguously."""
        if not len(self):
            return np.empty(0, np.uint8)
        if bool((self.starts[1:] == self.ends[:-1]).all()):
            return self.payload[int(self.starts[0]) : int(self.ends[-1])]
        return np.frombuffer(b"".join(self.bodies()), np.uint8)

    def to_bytes(self) -> bytes:
        """Encode the records for another worker: a header, the columns, and the payload."""
        payload = self.joined()
        columns = (self.sizes.astype("<i8"), self.offsets.astype("<i8"), self.appended_at.astype("<f8"), payload)
        head = HEADER.pack(MAGIC, VERSION, len(self), len(payload))
        return b"".join([head, *(column.tobytes() for column in columns)])

    def _grid(self) -> tuple[int, int, int] | None:
        """Return start, distance and size of the records, if distance and size are equal for all."""
        if not len(self):
            return None
        begin, size = int(self.starts[0]), int(self.ends[0] - self.starts[0])
        step = int(self.starts[1]) - begin if len(self) > 1 else size
        if step < size or size == 0:
            return None
        even = (self.sizes == size).all() and (self.starts[1:] - self.starts[:-1] == step).all()
        return (begin, step, size) if even else None

    @staticmethod
    def none() -> "Records":
        empty = np.empty(0, np.int64)
        return Records(np.empty(0, np.uint8), empty, empty, empty, np.empty(0, np.float64))


def concat(pieces: Sequence[Records]) -> Records:
    """Concatenate several runs, in order. A single run is returned unchanged; otherwise bytes are copied once."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return Records.none()
    return Records(
        np.concatenate([piece.joined() for piece in pieces]),
        *_places(np.concatenate([piece.sizes for piece in pieces])),
        np.concatenate([piece.offsets for piece in pieces]),
        np.concatenate([piece.appended_at for piece in pieces]),
    )


def from_bytes(data: Buffer) -> Records:
    """Decode the result of `to_bytes`, over the same memory. Raise BadInput for invalid bytes."""
    view = view_of(data)
    if len(view) < HEADER.size:
        raise _bad(f"{len(view)} bytes are fewer than the {HEADER.size} bytes of a header")
    magic, version, count, payload_bytes = HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION:
        raise _bad(f"the bytes begin with {bytes(magic)!r} version {version}, not {MAGIC!r} version {VERSION}")
    if count < 0 or payload_bytes < 0 or len(view) != HEADER.size + 24 * count + payload_bytes:
        raise _bad(f"{count} records of {payload_bytes} bytes do not fit the {len(view)} received bytes")
    columns = np.frombuffer(view, "<i8", 3 * count, HEADER.size).reshape(3, count).astype(np.int64)
    sizes, offsets, times = columns[0], columns[1], columns[2].view(np.float64)
    if count and (sizes.min() < 0 or sizes.max() > payload_bytes):
        raise _bad(
            f"record sizes go from {int(sizes.min())} to {int(sizes.max())} in a payload of {payload_bytes} bytes"
        )
    if int(sizes.sum()) != payload_bytes:
        raise _bad(f"record sizes do not add up to the payload's {payload_bytes} bytes")
    if not np.all(np.diff(offsets) > 0):
        raise _bad("offsets do not rise")
    payload = np.frombuffer(view, np.uint8, payload_bytes, len(view) - payload_bytes)
    return Records(payload, *_places(sizes), offsets, times)


def view_of(data: Buffer) -> memoryview:
    """Return the bytes of any buffer, without a copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def _places(sizes: Ints) -> tuple[Ints, Ints]:
    """Return the starts and ends of records that lie side by side."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return ends - sizes, ends


def _bad(why: str) -> errors.BadInput:
    return errors.BadInput(f"these bytes are not records: {why}; all workers of a job must run the same version")


MARK = b"\xf5ST\x01"
HEAD = np.dtype([("mark", "S4"), ("crc", "<u4"), ("event_us", "<i8")])
SIZE = HEAD.itemsize
CRC_FROM = 8  # index of the first byte that the CRC covers
BARE, WHOLE, DAMAGED = 0, 1, 2
"""State of a record: no envelope, an intact envelope, or a damaged envelope (cpp/batch/envelope.h)."""


class UnsealedRecords(NamedTuple):
    """Records without their envelopes."""

    bodies: Records
    event_at: Floats
    """Event time of each record, in seconds since 1970; NaN without an envelope."""
    damaged: Mask
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
    out = np.empty(len(starts), np.uint32)
    _native.crc32_each(payload, np.ascontiguousarray(starts), np.ascontiguousarray(ends), out)
    return out
