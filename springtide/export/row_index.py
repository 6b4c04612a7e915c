"""The index of an export: by slot and table, the keys that there are and a 64-bit sum of each row.

It lies beside the export's tables, so that the next export can tell what changed without reading rows of this one, and
slot by slot: the file is read from front to back as it was written. 16 bytes a row.

In: keys in order, and rows. Out: `index.bin`: for each slot and table keys, then sums; at its end all their counts.
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
    """A file to write to, from front to back."""

    def write(self, content: bytes, /) -> int:
        """More of it."""
        ...


class UnusableBase(errors.BadInput):
    """An index that is not what the card says: nothing can be built on it."""


def sums_of(rows: Rows) -> Sums:
    """Hash each row's bits to 64 bits."""
    mixed = np.empty(len(rows), dtype=np.uint64)
    place = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for first in range(0, len(rows), BLOCK_ROWS):
        part = np.ascontiguousarray(rows[first : first + BLOCK_ROWS])
        x = part.view(np.uint32).astype(np.uint64) + place  # the column counts, or a swap would not be seen
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        mixed[first : first + BLOCK_ROWS] = x.sum(axis=1, dtype=np.uint64)
    return mixed


class IndexWriter:
    """Writes parts in the order of slots, and within a slot in that of tables."""

    def __init__(self, out: Sink) -> None:
        self._out, self._counts = out, list[int]()

    def add(self, keys: Keys, sums: Sums) -> None:
        self._out.write(keys.tobytes())
        self._out.write(sums.tobytes())
        self._counts.append(len(keys))

    def close(self) -> None:
        self._out.write(np.array(self._counts, dtype=np.uint32).tobytes())


class IndexReader:
    """Reads them again, in the same order. Damaged when it is torn, or, at its end, when any bit is not as it was."""

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
