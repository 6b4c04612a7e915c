"""Pure. Which segments of a partition retention deletes: the oldest, whole ones, never the one that is written.

In: writer.py tells what there is. Out: how many go.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Kept(NamedTuple):
    """A segment."""

    bytes: int
    newest_at: float
    """When its newest record was appended."""


def too_many(segments: Sequence[Kept], *, retain_bytes: int | None, retain_s: float | None, at: float) -> int:
    """How many of the oldest go. The last of `segments` is being written: it stays.

    By size: as long as what stays is still `retain_bytes` or more, so a partition never has less than it was promised.
    By age: those whose newest record is older than `retain_s`, up to the first that is not.
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
