"""Shares the first and last offset of each partition, through a memory-mapped file that all producers and readers of a
log use.

A reader of 800 partitions finds new records in memory, without opening a file or making a system call. A producer
stores the new end last, after the bytes and the index. Records exist only from that moment on. After a reboot the file
is rebuilt from the segments. Only the end offsets of the old file are kept, because readers may have used these
offsets.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from springtide.data.stream.log import layout
from springtide.data.stream.records import Bytes
from springtide.domain.data.streams import MOST_PARTITIONS

START, END, CHANGES, BYTES, CHECKED, LAST_US = range(6)
"""Columns: oldest offset; end offset (newest + 1); number of segment changes; bytes; whether the newest segment was
checked since the boot; time of the newest record.
"""
FIELDS = 8
MAGIC = b"heads 1\n"
HEAD_BYTES = 64
NAME_BYTES = 48
SEALING, PARTITIONS = 6, 7
"""Header words (8 bytes) after the boot id: sealing state and number of partitions."""
OPEN, CLOSING, SEALED = 0, 1, 2
"""Values of `sealing`, in order: records may be appended; no new append may start, but one may be in progress; the ends
are final."""


class LogHeads:
    """The mapped file. Each row is a partition, and the columns are the fields above."""

    def __init__(self, path: Path) -> None:
        handle = os.open(path, os.O_RDWR)
        try:
            whole = map_file(handle, HEAD_BYTES + MOST_PARTITIONS * FIELDS * 8, to_write=True)
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
        """True if the file was written since the machine last started."""
        return self._name.tobytes() == _name()

    def forget(self, partitions: int) -> None:
        """Clear the rows, but keep the ends from an earlier boot, because readers may have seen them."""
        rows = self.rows[:partitions]
        ends = rows[:, END].copy() if self._name.tobytes().startswith(MAGIC) else 0
        rows[:] = 0
        rows[:, END] = ends

    def begin(self, partitions: int) -> None:
        """Mark all rows as valid for this boot."""
        self.partitions = partitions
        self._name[:] = np.frombuffer(_name(), np.uint8)


def make(path: Path) -> None:
    """Create the file. Leave an existing file unchanged."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # the file is sparse, so unused rows take no space
        os.ftruncate(handle, HEAD_BYTES + MOST_PARTITIONS * FIELDS * 8)
    finally:
        os.close(handle)


def _name() -> bytes:
    return (MAGIC + layout.boot_id()).ljust(NAME_BYTES, b"\0")


PROT_READ, PROT_WRITE, MAP_SHARED, MADV_DONTNEED = 1, 2, 1, 4
FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_file(handle: int, size: int, *, to_write: bool = False) -> Bytes:
    """Map the first `size` bytes of an open file. If the file is shorter, callers must not read beyond its end."""
    address = _libc.mmap(None, size, PROT_READ | (PROT_WRITE if to_write else 0), MAP_SHARED, handle, 0)
    if address == FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {size} bytes cannot be mapped")
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False
    array: Bytes = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
    array.flags.writeable = to_write
    return array


def release_memory(array: Bytes, first: int, end: int) -> None:
    """Release the memory of bytes that this reader has returned. Views of these bytes stay valid: when a view is read,
    the kernel loads the bytes again from the page cache or the disk.
    """
    page = mmap.PAGESIZE
    first, end = -(-first // page) * page, end // page * page
    if end > first:
        _libc.madvise(array.ctypes.data + first, end - first, MADV_DONTNEED)
