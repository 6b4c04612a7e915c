"""Where each partition begins and ends now, in a file that all producers and readers of a log have mapped.

A reader of 800 partitions sees what is new by looking at memory: no file is opened, no call made. A producer stores the
new end last, when bytes and index are written: that is when records exist. After a boot the file counts for nothing and
is made anew from the segments; only that ends went so far is believed. In: tail.py stores. Out: reader.py, stream.py.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from springtide.data.stream.log import layout, mapped
from springtide.domain.data.streams import MOST_PARTITIONS

START, END, CHANGES, BYTES, CHECKED, LAST_US = range(6)
"""Oldest offset kept, one more than the newest, how often segments came or went, bytes kept, whether the newest segment
was checked since the boot, when the newest record came."""
FIELDS = 8
MAGIC = b"heads 1\n"
HEAD_BYTES = 64
NAME_BYTES = 48
SEALING, PARTITIONS = 6, 7
"""Places in the header (of 8-byte words) after the boot's name: whether the log is sealed, and how many partitions."""
OPEN, CLOSING, SEALED = 0, 1, 2
"""Of `sealing`: records come; no more come, but one may be on its way; the ends are final."""


class PartitionHeads:
    """The mapped file. Rows are partitions, columns the fields above."""

    def __init__(self, path: Path) -> None:
        handle = os.open(path, os.O_RDWR)
        try:
            whole = mapped.map_file(handle, HEAD_BYTES + MOST_PARTITIONS * FIELDS * 8, to_write=True)
        finally:
            os.close(handle)
        words: NDArray[np.int64] = whole.view(np.int64)
        self._name = whole[:NAME_BYTES]
        self._header = words[: HEAD_BYTES // 8]
        self.rows: NDArray[np.int64] = words[HEAD_BYTES // 8 :].reshape(-1, FIELDS)

    @property
    def partitions(self) -> int:
        """How many there are."""
        return int(self._header[PARTITIONS])

    @partitions.setter
    def partitions(self, count: int) -> None:
        self._header[PARTITIONS] = count

    @property
    def sealing(self) -> int:
        """Whether records may still come."""
        return int(self._header[SEALING])

    @sealing.setter
    def sealing(self, how: int) -> None:
        self._header[SEALING] = how

    @property
    def of_this_boot(self) -> bool:
        """Whether what is stored here was stored since the machine started."""
        return self._name.tobytes() == _name()

    def forget(self, partitions: int) -> None:
        """Of the boot before, count nothing but the ends that readers were told; of no boot, nothing."""
        rows = self.rows[:partitions]
        ends = rows[:, END].copy() if self._name.tobytes().startswith(MAGIC) else 0
        rows[:] = 0
        rows[:, END] = ends

    def begin(self, partitions: int) -> None:
        """All rows are right now."""
        self.partitions = partitions
        self._name[:] = np.frombuffer(_name(), np.uint8)


def make(path: Path) -> None:
    """The file, with nothing in it yet; one that is there stays."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(handle, HEAD_BYTES + MOST_PARTITIONS * FIELDS * 8)  # sparse: what is not used takes no room
    finally:
        os.close(handle)


def _name() -> bytes:
    return (MAGIC + layout.boot_id()).ljust(NAME_BYTES, b"\0")
