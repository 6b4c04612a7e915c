"""Read the index of a segment: find complete appends, check them after a crash, and choose segments for retention.

In: tail.py when it opens a partition, reader.py for entries. An append is complete if its last entry exists. After a
reboot, its bytes must also match the CRC in that entry.
"""

import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.stream.log.layout import ENTRY, FORMAT, HEADER, MAGIC, WIDTH

Entries: TypeAlias = NDArray[np.void]


def header(base: int) -> bytes:
    return np.array([(MAGIC, FORMAT, WIDTH, base)], HEADER).tobytes()


def entries(handle: int, first: int, count: int) -> Entries:
    """Return `count` entries from position `first`; fewer if there are not enough complete ones."""
    raw = os.pread(handle, count * WIDTH, WIDTH + first * WIDTH)
    return np.frombuffer(raw, ENTRY, len(raw) // WIDTH)


def length(handle: int) -> int:
    """Return the number of complete entries of an index file, including entries of unfinished appends."""
    return max(0, os.fstat(handle).st_size // WIDTH - 1)


def check_header(handle: int, base: int, path: object) -> None:
    """Raise BadInput unless this is the index of a segment that begins with this offset."""
    if os.pread(handle, WIDTH, 0) != header(base):
        raise errors.BadInput(f"{path} is not an index of this version: the folder is damaged; restore or delete it")


def whole(handle: int) -> int:
    """Return the number of entries of complete appends."""
    count = length(handle)
    step = 1
    while count > 0:  # nearly always the last entry ends an append
        step = min(step, count)
        ends = np.flatnonzero(entries(handle, count - step, step)["records"])
        if len(ends):
            return count - step + int(ends[-1]) + 1
        count, step = count - step, step * 64
    return 0


def sound(index: int, data: int, count: int) -> int:
    """Return how many of `count` entries precede the first append with a wrong checksum."""
    good, begin = 0, 0
    size = os.fstat(data).st_size
    whole_index = entries(index, 0, count)
    for last in np.flatnonzero(whole_index["records"]).tolist():
        end, crc, records = (int(whole_index[field][last]) for field in ("end", "crc", "records"))
        if last + 1 - good != records or not begin <= end <= size:
            break
        if np.any(np.diff(whole_index["end"][good : last + 1], prepend=begin) < 0):
            break
        if zlib.crc32(os.pread(data, end - begin, begin)) != crc:
            break
        good, begin = last + 1, end
    return good


class SegmentSize(NamedTuple):
    """Size and age of a segment, for retention."""

    bytes: int
    newest_at: float
    """Append time of its newest record."""


def too_many(segments: Sequence[SegmentSize], *, retain_bytes: int | None, retain_s: float | None, at: float) -> int:
    """Return how many of the oldest segments retention deletes. The last segment is being written, and stays.

    By size: delete while the rest still has at least `retain_bytes`, so a partition never keeps less than promised. By
    age: delete segments whose newest record is older than `retain_s`, up to the first younger one.
    """
    closed = segments[:-1]
    by_age = 0
    while retain_s is not None and by_age < len(closed) and closed[by_age].newest_at < at - retain_s:
        by_age += 1
    by_size = 0
    left = sum(segment.bytes for segment in segments)
    while retain_bytes is not None and by_size < len(closed) and left - closed[by_size].bytes >= retain_bytes:
        left -= closed[by_size].bytes
        by_size += 1
    return max(by_age, by_size)
