"""Map a file into memory, also beyond its end: when the file grows, the same mapping shows the new bytes.

Python's mmap does not map beyond the end, and keeps a file descriptor for each mapping. A reader of 800 partitions has
that many mappings. A mapping ends with the last reference to its array. In: reader.py, heads.py.
"""

import ctypes
import mmap
import os
import weakref

import numpy as np

from springtide.data.stream.records import Bytes

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


def let_go(array: Bytes, first: int, end: int) -> None:
    """Release the memory of bytes that were read. Existing views can still read them from the page cache or disk."""
    page = mmap.PAGESIZE
    first, end = -(-first // page) * page, end // page * page
    if end > first:
        _libc.madvise(array.ctypes.data + first, end - first, MADV_DONTNEED)
