"""Begin and end of each partition, in a file that all producers and readers of a log map into memory.

A reader of 800 partitions finds new records by looking at memory, without opening a file or making a system call. A
producer stores the new end last, when bytes and index are written: only then do records exist. After a boot the file is
rebuilt from the segments; of the old file only the ends count, because readers may have seen them. In: tail.py stores.
Out: reader.py, stream.py.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from springtide.data.stream.log import layout, mapped
from springtide.domain.data.streams import MOST_PARTITIONS

START, END, CHANGES, BYTES, CHECKED, LAST_US = range(6)
"""Columns: oldest offset, one more than the newest, how often segments came or went, bytes, whether the newest segment
was checked since the boot, when the newest record came.
"""
FIELDS = 8
MAGIC = b"heads 1\n"
HEAD_BYTES = 64
NAME_BYTES = 48
SEALING, PARTITIONS = 6, 7
"""Header words (8 bytes) after the boot id: whether the log is sealed, and how many partitions it has."""
OPEN, CLOSING, SEALED = 0, 1, 2
"""Values of `sealing`: records come; no more come, but one may be under way; the ends are final."""


class LogHeads:
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
        return int(self._header[PARTITIONS])

    @partitions.setter
    def partitions(self, count: int) -> None:
        self._header[PARTITIONS] = count

    @property
    def sealing(self) -> int:
        return int(self._header[SEALING])

    @sealing.setter
    def sealing(self, how: int) -> None:
        self._header[SEALING] = how

    @property
    def of_this_boot(self) -> bool:
        """True if the file was written since the machine started."""
        return self._name.tobytes() == _name()

    def forget(self, partitions: int) -> None:
        """Clear the rows but for ends of an earlier boot, which readers may have seen."""
        rows = self.rows[:partitions]
        ends = rows[:, END].copy() if self._name.tobytes().startswith(MAGIC) else 0
        rows[:] = 0
        rows[:, END] = ends

    def begin(self, partitions: int) -> None:
        """Mark all rows as valid for this boot."""
        self.partitions = partitions
        self._name[:] = np.frombuffer(_name(), np.uint8)


def make(path: Path) -> None:
    """Create the file; an existing one stays."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(handle, HEAD_BYTES + MOST_PARTITIONS * FIELDS * 8)  # sparse: unused rows take no space
    finally:
        os.close(handle)


def _name() -> bytes:
    return (MAGIC + layout.boot_id()).ljust(NAME_BYTES, b"\0")
