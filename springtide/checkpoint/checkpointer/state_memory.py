"""Two images in shared memory, filled in turn: the newest whole one is there while the next is being written.

In: a `state_image.Plan`. Out: an image file whose pages outlive this process, so that a relaunched one loads it and the
saver process (checkpoint/checkpointer/state_saver.py) writes it to storage. An image counts only once its head is
there, which is written last. Where the files lie and who may write: checkpoint/checkpointer/state_folder.py.
"""

import concurrent.futures
import contextlib
import ctypes
import mmap
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_head, state_image

PIECE = 4 << 20
"""Bytes that one thread copies before it looks for more."""
SMALL = 1 << 16
"""Bytes that the caller copies itself: sooner done than the interpreter is handed to another thread and back."""


class ImageFile:
    """One image in memory. Grows, never shrinks; written by one process, read by any."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._bytes: torch.Tensor | None = None

    def fill(self, plan: state_image.Plan, copiers: concurrent.futures.ThreadPoolExecutor, threads: int) -> None:
        """Copy the state in. The file holds no valid image while this goes on."""
        memory, view = self.make_room(plan.head.image_bytes)
        memory[: state_head.BYTES] = bytes(state_head.BYTES)
        memory[state_head.BYTES : state_head.BYTES + len(plan.index)] = plan.index
        pieces: list[tuple[int, int, int]] = []
        rest: list[tuple[state_image.TensorPlace, torch.Tensor]] = []
        first = view.data_ptr()
        for place, tensor in zip(plan.places, plan.tensors, strict=True):
            if place.size > SMALL and _lies_straight(tensor):
                pieces += _pieces(first + place.offset, tensor.data_ptr(), place.size)
            else:
                rest.append((place, tensor))
        with _copied(pieces, copiers, threads):
            for place, tensor in rest:
                if _lies_straight(tensor):
                    ctypes.memmove(first + place.offset, tensor.data_ptr(), place.size)
                elif place.size:
                    room = view[place.offset : place.offset + place.size]
                    room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        memory[: state_head.BYTES] = state_head.encode(plan.head)

    def make_room(self, size: int) -> tuple[mmap.mmap, torch.Tensor]:
        """At least so many bytes, as a map and as a tensor. DiskFull when there is no such room."""
        if self._map is None or len(self._map) < size:
            self.close()
            self._map = _mapped(self.path, size)
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        assert self._bytes is not None
        return self._map, self._bytes

    def touch(self, size: int) -> None:
        """Have so many bytes ready, so that a save to come does not pay for new pages. What the image held is lost."""
        memory, view = self.make_room(size)
        memory[: state_head.BYTES] = bytes(state_head.BYTES)
        for at in range(state_head.BYTES, len(memory), PIECE):
            ctypes.memset(view.data_ptr() + at, 0, min(PIECE, len(memory) - at))

    def close(self) -> None:
        """Unmap; the file stays."""
        self._bytes = None
        if self._map is not None:
            with contextlib.suppress(BufferError):  # torch lets go of it a little later
                self._map.close()
        self._map = None


def _mapped(path: pathlib.Path, size: int) -> mmap.mmap:
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        before = os.fstat(file.fileno()).st_size
        size = max(before, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # a page that cannot be had later would be a SIGBUS
        except OSError as error:
            os.ftruncate(file.fileno(), before)
            free = shutil.disk_usage(path.parent).free
            raise errors.DiskFull(
                f"no room for an image of {size / 2**20:,.0f} MB in {path.parent}: {free / 2**20:,.0f} MB are free "
                f"({error.strerror}). Two images are kept; Checkpointer(memory=FOLDER) puts them elsewhere."
            ) from None
        return mmap.mmap(file.fileno(), size)


def _pieces(to: int, source: int, size: int) -> list[tuple[int, int, int]]:
    return [(to + at, source + at, min(PIECE, size - at)) for at in range(0, size, PIECE)]


def _lies_straight(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in this memory in the order of its elements."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


@contextlib.contextmanager
def _copied(
    pieces: Sequence[tuple[int, int, int]], copiers: concurrent.futures.ThreadPoolExecutor, threads: int
) -> Iterator[None]:
    """Large pieces, copied at the end by all threads; the others begin at once, while the caller does something else.

    memmove lets go of the interpreter, and who is within a large piece does not ask for it.
    """
    left = iter(pieces)

    def work() -> None:
        for to, source, size in left:  # shared: next() on a list's iterator is one step of the interpreter
            ctypes.memmove(to, source, size)

    others = [copiers.submit(work) for _ in range(threads - 1)] if len(pieces) > 1 else []
    try:
        yield
        work()
    finally:  # also when the caller failed: nobody writes into an image that is filled again
        concurrent.futures.wait(others)
    for other in others:
        other.result()
