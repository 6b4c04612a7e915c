"""Appends records to partitions of a log: writes records, starts the next segment, deletes the oldest.

Several producers may have a partition open. Each change locks the partition's folder and checks whether another
producer has moved the end. A producer writes the bytes first, then the index entries, and finally the new end in
heads.py. A producer that dies before the last write has appended nothing. Offsets are never reused, because a reader
may have seen them. If a machine crash loses the bytes of some records, their offsets become a gap.
"""

import contextlib
import errno
import fcntl
import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from springtide import errors
from springtide.data.stream.log import heads, layout
from springtide.data.stream.log.heads import LogHeads
from springtide.data.stream.log.layout import ENTRY, WIDTH, LogSettings
from springtide.data.stream.records import Buffer, Ints, view_of

MOST_OPEN = 200  # most open partitions; each needs three file descriptors, and a process usually has 1024
MOST_LOST = 2**40  # upper bound on the number of records that a crash can lose; no disk is this many records behind


class PartitionAppender:
    """A partition that is open for appending."""

    def __init__(self, folder: Path, partition: int, settings: LogSettings, heads_file: heads.LogHeads) -> None:
        self._folder = layout.partition_folder(folder, partition)
        self._settings = settings
        self._heads = heads_file
        self._row = heads_file.rows[partition]
        self._index = self._data = self._lock = -1
        self._lock = os.open(self._folder, os.O_RDONLY)
        # state of the newest segment: first offset, number of entries, position in bytes
        self._base = self._count = self._position = 0
        self._changes = -1

    def __del__(self) -> None:
        self.close()

    def append(self, payload: Buffer, ends: Ints, at_us: int) -> int:
        """Append all records or none; return the offset of the first record."""
        view = view_of(payload)
        with self._alone():
            if self._heads.sealing != heads.OPEN:
                raise errors.BadInput(f"the log of {self._folder} is sealed: nothing can be appended")
            if self._position and self._position + int(ends[-1]) > self._settings.segment_bytes:
                self._next_segment(self._base + self._count)
                self._delete_old(at_us / 1e6)
            first = self._base + self._count
            new = np.zeros(len(ends), ENTRY)
            new["end"] = ends + self._position
            new["at_us"] = at_us
            new["crc"][-1] = zlib.crc32(view)
            new["records"][-1] = len(ends)
            self._write(view, new)
            self._position, self._count = int(new["end"][-1]), self._count + len(new)
            self._row[heads.BYTES] += int(ends[-1])
            self._row[heads.LAST_US] = at_us
            self._row[heads.END] = first + len(new)
            return first

    def open(self) -> None:
        """Find the end of the partition, and repair the files after a crash."""
        with self._alone():
            pass

    def trim(self, at: float) -> int:
        """Delete segments that are past their retention, even the newest segment if it is old enough. Return their
        number."""
        with self._alone():
            keep_s = self._settings.retain_s
            if self._count and keep_s is not None and self._newest_at(self._base) < at - keep_s:
                self._next_segment(self._base + self._count)
            return self._delete_old(at)

    def sync(self) -> None:
        if self._data >= 0:
            os.fsync(self._data)
            os.fsync(self._index)

    def close(self) -> None:
        for handle in (self._index, self._data, self._lock):
            if handle >= 0:
                os.close(handle)
        self._index = self._data = self._lock = -1

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            if (
                self._changes != self._row[heads.CHANGES]
                or self._row[heads.END] != self._base + self._count
                or not self._row[heads.CHECKED]
                or os.fstat(self._index).st_size != WIDTH * (1 + self._count)
            ):
                self._find_end()
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _write(self, payload: memoryview, new: layout.Entries) -> None:
        try:
            _write_at(self._data, payload, self._position)
            if self._settings.sync == "append":
                os.fsync(self._data)
            _write_at(self._index, memoryview(new.tobytes()), WIDTH * (1 + self._count))
            if self._settings.sync == "append":
                os.fsync(self._index)
        except OSError as error:
            os.ftruncate(self._index, WIDTH * (1 + self._count))
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise errors.DiskFull(
                    f"no room for {len(payload)} bytes in {self._folder}; nothing was appended: "
                    "free some space, or let the log keep less (retain_bytes, retain_s)"
                ) from None
            raise

    def _find_end(self) -> None:
        """Read the end of the partition from its files: the last complete append of the newest segment. Truncate
        everything after this append.
        """
        known = layout.bases(self._folder)
        if not known:
            self._next_segment(int(self._row[heads.START]))
        else:
            self._open_segment(known[-1])
        there = layout.whole(self._index)
        good, seen = there, self._base + there
        if not self._row[heads.CHECKED]:
            good = layout.sound(self._index, self._data, there)
            # Readers may have seen this end before the machine crashed.
            seen = max(seen, min(int(self._row[heads.END]), seen + MOST_LOST))
        if layout.length(self._index) != good or os.fstat(self._index).st_size != WIDTH * (1 + good):
            os.ftruncate(self._index, WIDTH * (1 + good))
        self._count = good
        self._position = int(layout.entries(self._index, good - 1, 1)["end"][0]) if good else 0
        if self._base + good < seen:  # a reader may have used these entries, so their offsets are not reused
            self._next_segment(seen)
        self._publish_head()

    def _publish_head(self) -> None:
        kept = layout.bases(self._folder)
        closed = sum(os.stat(layout.data_path(self._folder, base)).st_size for base in kept[:-1])
        self._row[heads.START] = kept[0]
        self._row[heads.BYTES] = closed + self._position
        self._row[heads.CHECKED] = 1
        if self._row[heads.CHANGES] == 0:
            self._row[heads.CHANGES] = 1
        self._changes = int(self._row[heads.CHANGES])
        if self._count:
            self._row[heads.LAST_US] = int(layout.entries(self._index, self._count - 1, 1)["at_us"][0])
        self._row[heads.END] = self._base + self._count

    def _open_segment(self, base: int) -> None:
        path = layout.index_path(self._folder, base)
        index = os.open(path, os.O_RDWR)
        try:
            layout.check_header(index, base, path)
            data = os.open(layout.data_path(self._folder, base), os.O_RDWR)
        except BaseException:
            os.close(index)
            raise
        for old in (self._index, self._data):
            if old >= 0:
                os.close(old)
        self._index, self._data, self._base = index, data, base

    def _next_segment(self, base: int) -> None:
        """Close the newest segment, and begin another at this offset."""
        if self._data >= 0:
            os.ftruncate(self._data, self._position)  # drop bytes of an unfinished append that a killed producer left
            self.sync()
        os.close(os.open(layout.data_path(self._folder, base), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666))
        path = layout.index_path(self._folder, base)
        new = path.with_suffix(".new")
        new.write_bytes(layout.header(base))
        new.replace(path)
        os.fsync(self._lock)
        self._open_segment(base)
        self._count = self._position = 0
        self._row[heads.CHANGES] += 1
        self._changes = int(self._row[heads.CHANGES])
        self._row[heads.END] = base

    def _delete_old(self, at: float) -> int:
        """Publish the new first offset, then delete the files. Mapped files stay readable."""
        known = layout.bases(self._folder)
        rules = self._settings
        if rules.retain_bytes is None and rules.retain_s is None:
            return 0
        segments = [
            layout.SegmentSize(os.stat(layout.data_path(self._folder, base)).st_size, self._newest_at(base))
            for base in known
        ]
        gone = layout.too_many(segments, retain_bytes=rules.retain_bytes, retain_s=rules.retain_s, at=at)
        if gone:
            self._row[heads.START] = known[gone]
            self._row[heads.BYTES] -= sum(size.bytes for size in segments[:gone])
            self._row[heads.CHANGES] += 1
            self._changes = int(self._row[heads.CHANGES])
        for base in known[:gone]:  # delete the index before the data, because a segment without an index does not count
            layout.index_path(self._folder, base).unlink()
            layout.data_path(self._folder, base).unlink()
        return gone

    def _newest_at(self, base: int) -> float:
        """Return the append time of a segment's newest record; for an empty segment, return `inf`."""
        with layout.index_path(self._folder, base).open("rb") as file:
            count = layout.whole(file.fileno())
            return int(layout.entries(file.fileno(), count - 1, 1)["at_us"][0]) / 1e6 if count else float("inf")


def _write_at(handle: int, view: memoryview, position: int) -> None:
    while len(view):
        done = os.pwrite(handle, view, position)
        view, position = view[done:], position + done


class LogWriter:
    """A `StreamWriter` for the log in a folder. Only one thread may use a writer; several writers may append to the
    same log at the same time.
    """

    def __init__(self, folder: Path, heads: LogHeads) -> None:
        self._folder = folder
        self._heads = heads
        self._settings = layout.load(folder)
        self._tails: OrderedDict[int, PartitionAppender] = OrderedDict()

    def append(self, partition: int, payload: Buffer, ends: Ints, *, at: float | None = None) -> None:
        """Append all records or none. `at` is the append time, for tests; the default is now."""
        if not len(ends):
            return
        ends, size = np.asarray(ends, np.int64), len(view_of(payload))
        if int(ends[-1]) != size or ends[0] < 0 or np.any(np.diff(ends) < 0):
            raise errors.BadInput(
                f"records that end at {int(ends[0])}..{int(ends[-1])} do not fit {size} bytes; "
                "ends must rise, and the last end must be the end of the payload"
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
        """Force appended records to disk. Readers see appended records even without a flush."""
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
