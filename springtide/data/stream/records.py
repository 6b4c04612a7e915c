"""Pure. Hold consecutive records of a partition as columns: no object per record, slices without copies.

In: log/reader.py and kafka/reader.py fill them. Out: data/stream/record_filter.py and decode.py read whole batches. A
worker sends `to_bytes` to a peer that trains the batch. `from_bytes` checks all sizes, and nothing is unpickled.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from springtide import errors

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Buffer: TypeAlias = bytes | bytearray | memoryview | Bytes

MAGIC, VERSION = b"SREC", 1
HEADER = struct.Struct("<4sBBBBqqqqd")
"""Magic, version, encodings of lengths, offsets and times; records, payload bytes, first offset, length, time."""
ALIKE, EACH, MICROS = 0, 1, 2
"""Encoding of a column: a single value (offsets: consecutive), all values, or 32-bit microseconds since the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of a partition, with rising offsets. Record i is ``payload[starts[i]:ends[i]]``."""

    payload: Bytes
    """Bytes of the records; may contain more, such as a part of a mapped file."""
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        columns = ((self.offsets, other.offsets), (self.appended_at, other.appended_at), (self.sizes, other.sizes))
        return all(np.array_equal(one, two) for one, two in columns) and self.joined().tobytes() == (
            other.joined().tobytes()
        )

    def __repr__(self) -> str:
        if not len(self):
            return "Records(none)"
        return f"Records({len(self)} at offsets {self.offsets[0]}..{self.offsets[-1]}, {self.nbytes} bytes)"

    @property
    def sizes(self) -> Ints:
        return self.ends - self.starts

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    def rows(self) -> Bytes | None:
        """Return all records as rows of an array, without a copy. Return None unless sizes and distances are equal."""
        grid = self._grid()
        if grid is None:
            return None
        begin, step, size = grid
        rows: Bytes = np.ndarray((len(self), size), np.uint8, self.payload.data, begin, (step, 1))
        return rows

    def structs(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return the records as values of a structured type of this size, without a copy; None if the sizes differ."""
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
        """Return the bytes of all records, joined; a view if they are stored that way."""
        if not len(self):
            return np.empty(0, np.uint8)
        if self._adjacent():
            return self.payload[int(self.starts[0]) : int(self.ends[-1])]
        return np.frombuffer(b"".join(self.bodies()), np.uint8)

    def owned(self) -> "Records":
        """Return the records with their own memory, independent of the file or message they came from."""
        return concat([self, Records.none()])

    def to_bytes(self) -> bytes:
        """Encode the records for another worker: a header, the columns that vary, and the payload."""
        if not len(self):
            return HEADER.pack(MAGIC, VERSION, ALIKE, ALIKE, ALIKE, 0, 0, 0, 0, 0.0)
        sizes, first = self.sizes, int(self.offsets[0])
        columns: list[bytes] = []
        how_sizes = how_offsets = how_times = ALIKE
        # ensures that there are never more records than received bytes
        if sizes[0] == 0 or not np.all(sizes == sizes[0]):
            how_sizes = EACH
            columns.append(sizes.astype("<i8").tobytes())
        if int(self.offsets[-1]) - first != len(self) - 1:
            how_offsets = EACH
            columns.append(self.offsets.astype("<i8").tobytes())
        if not np.all(self.appended_at == self.appended_at[0]):
            how_times, column = _times(self.appended_at)
            columns.append(column)
        payload = self.joined()
        head = HEADER.pack(
            MAGIC,
            VERSION,
            how_sizes,
            how_offsets,
            how_times,
            len(self),
            len(payload),
            first,
            int(sizes[0]),
            float(self.appended_at[0]),
        )
        return b"".join([head, *columns, payload.tobytes()])

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

    def _adjacent(self) -> bool:
        return bool((self.starts[1:] == self.ends[:-1]).all())

    @staticmethod
    def none() -> "Records":
        empty = np.empty(0, np.int64)
        return Records(np.empty(0, np.uint8), empty, empty, empty, np.empty(0, np.float64))

    @staticmethod
    def of(
        bodies: Sequence[bytes],
        *,
        first: int = 0,
        offsets: Sequence[int] | Ints | None = None,
        appended_at: float | Sequence[float] | Floats = 0.0,
    ) -> "Records":
        ends = np.cumsum(np.fromiter((len(body) for body in bodies), np.int64, len(bodies)), dtype=np.int64)
        places = np.arange(first, first + len(bodies)) if offsets is None else np.asarray(offsets, np.int64)
        times = np.broadcast_to(np.asarray(appended_at, np.float64), (len(bodies),))
        payload = np.frombuffer(b"".join(bodies), np.uint8)
        return Records(payload, np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)], ends, places, times)


def concat(pieces: Sequence[Records]) -> Records:
    """Concatenate several runs, in order. A single run is returned unchanged; otherwise bytes are copied once."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return Records.none()
    ends = np.cumsum(np.concatenate([piece.sizes for piece in pieces]), dtype=np.int64)
    return Records(
        np.concatenate([piece.joined() for piece in pieces]),
        np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)],
        ends,
        np.concatenate([piece.offsets for piece in pieces]),
        np.concatenate([piece.appended_at for piece in pieces]),
    )


def from_bytes(data: Buffer) -> Records:
    """Decode the result of `to_bytes`, over the same memory. Raise BadInput for anything else."""
    view = view_of(data)
    if len(view) < HEADER.size:
        raise _bad(f"{len(view)} bytes are less than a header of {HEADER.size}")
    magic, version, how_sizes, how_offsets, how_times, count, payload_bytes, first, size, at = HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION:
        raise _bad(f"they begin with {bytes(magic)!r} version {version}, not {MAGIC!r} version {VERSION}")
    if how_sizes not in (ALIKE, EACH) or how_offsets not in (ALIKE, EACH) or how_times not in (ALIKE, EACH, MICROS):
        raise _bad(f"columns are written as {how_sizes}, {how_offsets}, {how_times}")
    widths = (8 * (how_sizes == EACH), 8 * (how_offsets == EACH), {ALIKE: 0, EACH: 8, MICROS: 4}[how_times])
    if count < 0 or payload_bytes < 0 or len(view) != HEADER.size + count * sum(widths) + payload_bytes:
        raise _bad(f"{count} records of {payload_bytes} bytes do not make the {len(view)} that came")
    if how_sizes == ALIKE and count and (size <= 0 or count * size != payload_bytes):
        raise _bad(f"{count} records of {size} bytes are not {payload_bytes}")
    at_byte = HEADER.size
    columns = []
    for width, kind in zip(widths, ("<i8", "<i8", "<u4" if how_times == MICROS else "<f8"), strict=True):
        columns.append(np.frombuffer(view, kind, count if width else 0, at_byte))
        at_byte += count * width
    ends = _ends(columns[0], how_sizes, count, size, payload_bytes)
    offsets = np.arange(first, first + count) if how_offsets == ALIKE else columns[1].astype(np.int64)
    if how_offsets == EACH and not np.all(np.diff(offsets) > 0):
        raise _bad("offsets do not rise")
    times = columns[2].astype(np.float64) if how_times == EACH else np.full(count, at)
    if how_times == MICROS:
        times = _from_micros(at, columns[2])
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[:count]
    return Records(np.frombuffer(view, np.uint8, payload_bytes, at_byte), starts, ends, offsets, times)


def view_of(data: Buffer) -> memoryview:
    """Return the bytes of any buffer, without a copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def _ends(sizes: NDArray[np.int64], how: int, count: int, size: int, payload_bytes: int) -> Ints:
    if how == ALIKE:
        return np.arange(1, count + 1, dtype=np.int64) * size
    if count and (sizes.min() < 0 or sizes.max() > payload_bytes):
        raise _bad(f"a record has {int(sizes.min())} or {int(sizes.max())} of {payload_bytes} bytes")
    ends = np.cumsum(sizes, dtype=np.int64)
    if (int(ends[-1]) if count else 0) != payload_bytes or (count and ends.min() < 0):
        raise _bad(f"sizes of records do not add up to {payload_bytes} bytes")
    return ends


def _times(times: Floats) -> tuple[int, bytes]:
    """Encode times as microseconds since the first, which halves their size, if no bit is lost."""
    since = np.rint(times * 1e6) - np.rint(times[0] * 1e6)
    if np.all(np.isfinite(times)) and since.min() >= 0 and since.max() < 2**32:
        column = since.astype("<u4")
        if np.array_equal(_from_micros(float(times[0]), column), times):
            return MICROS, column.tobytes()
    return EACH, times.astype("<f8").tobytes()


def _from_micros(first: float, since: NDArray[np.uint32]) -> Floats:
    return np.asarray((np.rint(first * 1e6) + since) / 1e6, np.float64)


def _bad(why: str) -> errors.BadInput:
    return errors.BadInput(f"these bytes are no records: {why}; workers of one job must be of one version")
