"""Index of an export: the keys of each slot and table, with a 64-bit checksum of each row.

The index is stored beside the tables, at 16 bytes per row. The next export finds changed rows from it without reading
the old rows, slot by slot from front to back.

In: sorted keys, and rows. Out: `index.bin`: keys and checksums for each slot and table, and all counts at the end.
"""

import zlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.checkpoint.format.storage import FileStore
from springtide.export.model import Keys, Rows

NAME = "index.bin"
BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 1 << 14

Sums = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint32]


class Sink(Protocol):
    """A file to write from front to back."""

    def write(self, content: bytes, /) -> int: ...


class UnusableBase(errors.BadInput):
    """Raised if an index does not match its card, so that no delta can build on it."""


def sums_of(rows: Rows) -> Sums:
    """Hash each row's bits to 64 bits."""
    mixed = np.empty(len(rows), dtype=np.uint64)
    place = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for first in range(0, len(rows), BLOCK_ROWS):
        part = np.ascontiguousarray(rows[first : first + BLOCK_ROWS])
        # add the column number, or a swap of columns would go unnoticed
        x = part.view(np.uint32).astype(np.uint64) + place
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        mixed[first : first + BLOCK_ROWS] = x.sum(axis=1, dtype=np.uint64)
    return mixed


class IndexWriter:
    """Writes an index in order of slots, and within a slot in order of tables."""

    def __init__(self, out: Sink) -> None:
        self._out, self._counts = out, list[int]()

    def add(self, keys: Keys, sums: Sums) -> None:
        self._out.write(keys.tobytes())
        self._out.write(sums.tobytes())
        self._counts.append(len(keys))

    def close(self) -> None:
        self._out.write(np.array(self._counts, dtype=np.uint32).tobytes())


class IndexReader:
    """Reads an index in the order of writing. It raises if the file is truncated, or at the end if the checksum is
    wrong.
    """

    def __init__(self, place: FileStore, *, parts: int, crc: int) -> None:
        self._place, self._crc, self._seen = place, crc, 0
        size = place.size(NAME)
        if size is None or size < 4 * parts:
            raise UnusableBase(f"{place.where}/{NAME} is {'missing' if size is None else 'torn'}")
        tail = place.read(NAME, size - 4 * parts)
        self._counts: Counts = np.frombuffer(tail, dtype=np.uint32)
        self._end = size - 4 * parts
        if len(tail) != 4 * parts or 16 * int(self._counts.sum(dtype=np.int64)) != self._end:
            raise UnusableBase(f"{place.where}/{NAME} is torn")
        self._tail = tail
        self._at = self._part = 0
        self._ahead, self._used = b"", 0

    def next(self) -> tuple[Keys, Sums]:
        count = int(self._counts[self._part])
        self._part += 1
        return (
            np.frombuffer(self._take(8 * count), dtype=np.int64),
            np.frombuffer(self._take(8 * count), dtype=np.uint64),
        )

    def close(self) -> None:
        """Check the checksum after the last part."""
        if zlib.crc32(self._tail, self._seen) != self._crc:
            raise UnusableBase(f"{self._place.where}/{NAME} was changed: its checksum is not the card's")

    def _take(self, size: int) -> bytes:
        while len(self._ahead) - self._used < size:
            block = self._place.read(NAME, self._at, min(max(BLOCK_BYTES, size), self._end - self._at))
            if not block:
                raise UnusableBase(f"{self._place.where}/{NAME} is torn")
            self._seen = zlib.crc32(block, self._seen)
            self._at += len(block)
            self._ahead, self._used = self._ahead[self._used :] + block, 0
        self._used += size
        return self._ahead[self._used - size : self._used]
