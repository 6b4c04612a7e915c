"""Append records to partitions of a log, with a limited number of open files.

In: produce.py, `stream.writer()`. Next: tail.py, for a single partition.
"""

import time
from collections import OrderedDict
from pathlib import Path

import numpy as np

from springtide import errors
from springtide.data.stream.log import layout
from springtide.data.stream.log.heads import LogHeads
from springtide.data.stream.log.tail import PartitionAppender
from springtide.data.stream.records import Buffer, Ints, view_of

MOST_OPEN = 200  # partitions; each has three file descriptors, and a process usually has 1024


class LogWriter:
    """A `StreamWriter` for the log in a folder. For a single thread; several writers may append at once."""

    def __init__(self, folder: Path, heads: LogHeads) -> None:
        self._folder = folder
        self._heads = heads
        self._settings = layout.load(folder)
        self._tails: OrderedDict[int, PartitionAppender] = OrderedDict()

    def append(self, partition: int, payload: Buffer, ends: Ints, *, at: float | None = None) -> None:
        """Append records, all or none. `at` is the append time, for tests; the default is now."""
        if not len(ends):
            return
        ends, size = np.asarray(ends, np.int64), len(view_of(payload))
        if int(ends[-1]) != size or ends[0] < 0 or np.any(np.diff(ends) < 0):
            raise errors.BadInput(
                f"records that end at {int(ends[0])}..{int(ends[-1])} do not fit {size} bytes; "
                "ends must rise, and the last be where the payload ends"
            )
        now = time.time() if at is None else at
        self._tail(partition).append(payload, ends, round(now * 1e6))

    def put(self, partition: int, bodies: list[bytes], *, at: float | None = None) -> None:
        ends = np.cumsum(np.fromiter((len(body) for body in bodies), np.int64, len(bodies)))
        self.append(partition, b"".join(bodies), ends, at=at)

    def trim(self, *, at: float | None = None) -> int:
        """Delete segments that retention no longer keeps, in all partitions; return their number."""
        now = time.time() if at is None else at
        return sum(self._tail(partition).trim(now) for partition in range(self._heads.partitions))

    def flush(self) -> None:
        """Force appended records to disk. Readers see the records before that."""
        for tail in self._tails.values():
            tail.sync()

    def close(self) -> None:
        while self._tails:
            self._tails.popitem()[1].close()

    def _tail(self, partition: int) -> PartitionAppender:
        tail = self._tails.get(partition)
        if tail is not None:
            self._tails.move_to_end(partition)
        else:
            tail = self._open(partition)
        return tail

    def _open(self, partition: int) -> PartitionAppender:
        if not 0 <= partition < self._heads.partitions:
            raise errors.BadInput(
                f"the log at {self._folder} has partitions 0 to {self._heads.partitions - 1}, not {partition}"
            )
        if len(self._tails) >= MOST_OPEN:
            self._tails.popitem(last=False)[1].close()
        tail = PartitionAppender(self._folder, partition, self._settings, self._heads)
        tail.open()
        self._tails[partition] = tail
        return tail
