"""Allocates memory for payloads: segments shared with a process on the same host, and private blocks.

A view of a buffer keeps the buffer alive. After the last view is dropped, the memory is reused. A segment is a
sealed memfd, passed over a Unix socket. A segment has no name, and the kernel frees it when both processes have
ended. The segment's first byte says whether the segment is in use: the sender sets the byte, the receiver clears it.
If all segments are in use, the sender sends the payload through the socket.
"""

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

from springtide import _native
from springtide.rpc.transport.frames import BadFrame

CONTROL_BYTES = 64  # bytes before the payload, so that the payload is aligned
LEAST_BYTES = 1 << 16
MOST_SEGMENTS = 32
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SPARE_BLOCKS = 8  # most free blocks to keep for later messages


class SharedSegment:
    """Shared memory that this process writes and its peer reads."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.fd = os.memfd_create("springtide-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, capacity)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        self.pages = mmap.mmap(self.fd, capacity)
        self._begin = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.pages)) + CONTROL_BYTES
        self.told = False
        """True if the peer has the file descriptor."""

    @property
    def busy(self) -> bool:
        """True if the peer or a message in transit still uses the segment."""
        return self.pages[0] != 0

    def take(self) -> None:
        """Mark the segment as in use. After this call, only the receiver may mark the segment as free."""
        self.pages[0] = 1

    def fill(self, pieces: list[tuple[int, int, int]] | _native.Pieces) -> None:
        """Copy these pieces (offset in the payload, address, bytes) into the segment."""
        _native.gather_pieces(pieces, self._begin, self.capacity - CONTROL_BYTES)

    def close(self) -> None:
        """Release this process's mapping of the segment; views in the peer stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class OutgoingSegments:
    """The sender's segments. The segment that was freed last is reused first, because it is still in the CPU caches."""

    def __init__(self, most_bytes: int, most_segments: int = MOST_SEGMENTS) -> None:
        self.most_bytes, self.most_segments = most_bytes, most_segments
        self.segments: dict[int, SharedSegment] = {}
        """Segments by number, least recently used first."""

    def take(self, size: int) -> SharedSegment | None:
        """Return a segment with room for this many bytes, marked as in use; return None if no segment is large
        enough.
        """
        needed = size + CONTROL_BYTES
        free = [segment for segment in self.segments.values() if not segment.busy]
        fitting = [segment for segment in free if segment.capacity >= needed]
        if fitting:
            segment = min(reversed(fitting), key=lambda free: free.capacity)
            del self.segments[segment.number]
        else:
            made = self._make(max(LEAST_BYTES, 1 << (needed - 1).bit_length()), free)
            if made is None:
                return None
            segment = made
        self.segments[segment.number] = segment
        segment.take()
        return segment

    def _make(self, capacity: int, free: list[SharedSegment]) -> SharedSegment | None:
        while free and not self._room_for(capacity):
            self.segments.pop(free.pop(0).number).close()
        if not self._room_for(capacity):
            return None
        number = next(number for number in range(self.most_segments) if number not in self.segments)
        return SharedSegment(number, capacity)

    def _room_for(self, capacity: int) -> bool:
        held = sum(segment.capacity for segment in self.segments.values())
        return held + capacity <= self.most_bytes and len(self.segments) < self.most_segments

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()


class IncomingSegments:
    """The receiver's mappings of the peer's segments."""

    def __init__(self) -> None:
        self.mapped: dict[int, mmap.mmap] = {}

    def map(self, number: int, fd: int) -> None:
        """Map a segment that the peer has passed. The segment replaces an older one with the same number."""
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
                raise BadFrame("the peer could shrink the segment while this side reads it")
            self.mapped[number] = mmap.mmap(fd, 0)
        except (OSError, ValueError) as error:
            raise BadFrame(f"cannot map the segment of shared memory: {error}") from error
        finally:
            os.close(fd)

    def view(self, number: int, size: int) -> Any:
        """Return the payload in a segment. The sender can reuse the segment after all views are dropped."""
        pages = self.mapped.get(number)
        if pages is None or len(pages) < CONTROL_BYTES + size:
            raise BadFrame(f"the peer announced {size} bytes in segment {number}, but the segment is smaller")
        return _lent(pages, CONTROL_BYTES, functools.partial(_release, pages, os.getpid()))


class BlockPool:
    """Pool of memory for payloads from a socket. The pages of reused blocks are already in memory."""

    def __init__(self, spare: int = SPARE_BLOCKS) -> None:
        self.spare: list[mmap.mmap] = []
        self.most = spare
        self.lock = threading.Lock()

    def take(self, size: int) -> Any:
        pages = None
        with self.lock:
            for index in reversed(range(len(self.spare))):
                if size <= len(self.spare[index]) <= max(LEAST_BYTES, 4 * size):
                    pages = self.spare.pop(index)
                    break
        if pages is None:
            pages = mmap.mmap(-1, max(LEAST_BYTES, 1 << (size - 1).bit_length()), flags=mmap.MAP_PRIVATE)
            with contextlib.suppress(OSError):  # the kernel may have no huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
        return _lent(pages, 0, functools.partial(self._give_back, pages))

    def _give_back(self, pages: mmap.mmap) -> None:
        """Keep a block for reuse. This method runs in any thread, so it never waits for the lock."""
        if self.lock.acquire(blocking=False):
            try:
                self.spare.append(pages)
                del self.spare[: -self.most]
            finally:
                self.lock.release()


def _release(pages: mmap.mmap, pid: int) -> None:
    """Free a segment, except in a forked child, because the child has views of the same pages."""
    if os.getpid() == pid:
        pages[0] = 0


def _lent(pages: mmap.mmap, offset: int, after: Callable[[], None]) -> Any:
    """Return a buffer over these pages. Call `after` when the buffer and all its views are gone.

    The buffer is a ctypes array. Tensors and NumPy arrays keep a reference to a ctypes array from which they are
    made, but not to a memoryview.
    """
    lent = _lent_type(len(pages) - offset).from_buffer(pages, offset)
    lent.after = after
    return lent


@functools.lru_cache(64)
def _lent_type(size: int) -> Any:
    def dropped(self: Any) -> None:
        self.after()

    return type("Lent", (ctypes.c_ubyte * size,), {"__del__": dropped})
