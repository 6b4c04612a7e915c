"""Reads a log. heads.py shows which records are new, and mapped files provide them without a copy.

In: `stream.open()`. Out: `Chunk`s. A waiting reader sleeps briefly between checks of heads.py. A check costs
microseconds for any number of partitions. Next: worker/online/.
"""

import bisect
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from springtide import errors
from springtide.data.stream.log import heads, layout
from springtide.data.stream.log.heads import LogHeads
from springtide.data.stream.records import Bytes, Ints, Records
from springtide.data.stream.stream import Chunk

# seconds between checks; a check costs about 10 us, so a reader uses 0.5% of a core while no record comes
NAP_S = 0.002
# bytes per partition that stay mapped after reading; without this limit, the resident size of the process would keep
# growing
KEPT_BYTES = 4 * 2**20
# bytes to map beyond the usual size of a segment, so that a file rarely has to be mapped again after a large append
SPARE_BYTES = 2**20


class LogReader:
    """A `StreamReader` for the log in a folder."""

    def __init__(self, folder: Path, watched: LogHeads) -> None:
        self._folder = folder
        self._heads = watched
        self._places: dict[int, _PartitionReader] = {}
        self._order: Ints = np.empty(0, np.int64)
        self._at: Ints = np.empty(0, np.int64)  # read positions of the partitions, in the order of the partitions
        self._turn = 0  # partition with which the next sweep over all partitions begins
        self._room = layout.load(folder).segment_bytes + SPARE_BYTES

    def assign(self, positions: Mapping[int, int]) -> None:
        for partition, offset in positions.items():
            if not 0 <= partition < self._heads.partitions or offset < 0:
                raise errors.BadInput(
                    f"offset {offset} of partition {partition} cannot be read; the log at {self._folder} has "
                    f"partitions 0 to {self._heads.partitions - 1}, and offsets begin at 0"
                )
            end = int(self._heads.rows[partition, heads.END])
            if offset > end:
                raise errors.StreamShrunk(
                    f"partition {partition} of the log at {self._folder} ends at {end}, but the job has read up to "
                    f"{offset}; the log was recreated, or its machine lost data. Begin a new job on it"
                )
        old = self._places
        self._places = {}
        for partition in sorted(positions):
            self._places[partition] = old.get(partition) or self._place(partition)
        self._order = np.fromiter(self._places, np.int64, len(self._places))
        self._at = np.fromiter((positions[partition] for partition in self._places), np.int64, len(self._places))

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        until = time.monotonic() + timeout_s
        while True:
            chunks = self._sweep(max(1, most))
            left = until - time.monotonic()
            if chunks or left <= 0:
                return chunks
            time.sleep(min(NAP_S, left))

    def ends(self) -> Mapping[int, int]:
        ends = self._heads.rows[self._order, heads.END]
        return dict(zip(self._order.tolist(), ends.tolist(), strict=True))

    def close(self) -> None:
        self._places = {}
        self._order = np.empty(0, np.int64)

    def _place(self, partition: int) -> "_PartitionReader":
        folder = layout.partition_folder(self._folder, partition)
        return _PartitionReader(folder, self._heads.rows[partition], self._room)

    def _sweep(self, most: int) -> list[Chunk]:
        """Read each partition with new records once. Begin with the partition after the partition that was read
        last.
        """
        rows = self._heads.rows
        news = np.flatnonzero((rows[self._order, heads.END] > self._at) | (rows[self._order, heads.START] > self._at))
        if not len(news):
            return []
        behind = np.roll(news, -int(np.searchsorted(self._order[news], self._turn))).tolist()
        chunks: list[Chunk] = []
        for i, which in enumerate(behind):
            partition = int(self._order[which])
            share = -(-most // (len(behind) - i))
            chunk = self._places[partition].read(partition, int(self._at[which]), share)
            if chunk is not None:
                chunks.append(chunk)
                self._at[which] = chunk.next
                self._turn = partition + 1
                most -= len(chunk.records)
            if most <= 0:
                break
        return chunks


class _PartitionReader:
    """Reader of a partition, with the last read segment mapped."""

    def __init__(self, folder: Path, row: Ints, room: int) -> None:
        self._folder = folder
        self._row = row
        self._room = room
        self._changes = -1
        self._bases: list[int] = []
        self._base = -1
        self._data: Bytes = np.empty(0, np.uint8)
        self._size = 0  # known number of bytes of the mapped segment
        self._gone = 0  # number of bytes of the segment whose memory has been released

    def read(self, partition: int, first: int, most: int) -> Chunk | None:
        for _ in range(3):  # try again if retention deletes the segment during the read, because a later segment exists
            if self._changes != self._row[heads.CHANGES]:
                self._changes = int(self._row[heads.CHANGES])
                self._bases = layout.bases(self._folder)
            end, start = int(self._row[heads.END]), int(self._row[heads.START])
            at = max(first, start)
            which = bisect.bisect_right(self._bases, at) - 1
            limit = self._bases[which + 1] if which + 1 < len(self._bases) else end
            try:
                if which < 0:
                    raise FileNotFoundError
                records = self._records(self._bases[which], at, min(end, limit, at + most))
            except FileNotFoundError:
                self._changes = -1
                continue
            reached = int(records.offsets[-1]) + 1 if len(records) else at
            if reached < limit <= end and len(records) < min(most, limit - at):
                reached = limit  # lost entries leave a gap before the next segment
            lost = max(0, start - first)
            chunk = Chunk(partition=partition, first=first, next=reached, records=records, expired=lost)
            return chunk if reached > first else None
        return None

    def _records(self, base: int, first: int, end: int) -> Records:
        place = first - base
        skip = 1 if place else 0  # also read the previous entry, which says where the first record begins
        index = os.open(layout.index_path(self._folder, base), os.O_RDONLY)
        try:
            entries = layout.entries(index, place - skip, end - first + skip)
        finally:
            os.close(index)
        if len(entries) <= skip:
            return Records.none()
        ends = entries["end"].astype(np.int64)
        starts = ends[:-1] if skip else np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        ends = ends[skip:]
        if int(starts[0]) < 0 or bool(np.any(ends < starts)):
            raise self._damaged(base)
        if base != self._base or int(ends[-1]) > self._size:
            self._map(base, int(ends[-1]))
        if int(starts[0]) - self._gone >= 2 * KEPT_BYTES:
            heads.release_memory(self._data, self._gone, int(starts[0]) - KEPT_BYTES)
            self._gone = int(starts[0]) - KEPT_BYTES
        times = entries["at_us"][skip:] / 1e6
        return Records(self._data, starts, ends, np.arange(first, first + len(ends)), times)

    def _map(self, base: int, size: int) -> None:
        """Map a segment of which at least `size` bytes are needed: to read mapped memory beyond its end would kill the
        process."""
        path = layout.data_path(self._folder, base)
        self._size = os.stat(path).st_size
        if size > self._size:
            raise self._damaged(base)
        if base == self._base and size <= len(self._data):
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            self._data = heads.map_file(handle, max(self._room, size))
        finally:
            os.close(handle)
        self._base, self._gone = base, 0

    def _damaged(self, base: int) -> errors.BadInput:
        return errors.BadInput(
            f"{layout.index_path(self._folder, base)} names bytes that its records do not have, so the log's folder is "
            "damaged; restore or delete the folder"
        )
