"""Keeps two images in shared memory and fills them in turn, so that a complete image always exists.

In: a `state_image.ImagePlan`. Out: an image file whose pages survive this process. A relaunched process loads it, and
the saver process (state_saver.py) writes it to storage. An image is valid only with its header, which is written last.
state_folder.py has the file names and the lock.
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
from springtide.checkpoint.checkpointer import state_folder, state_image

PIECE = 4 << 20
"""Bytes that one thread copies before it takes the next piece."""
SMALL = 1 << 16
"""Largest tensor in bytes that the caller copies itself, because a thread switch would take longer."""


class ImageFile:
    """One image in memory. It grows and never shrinks. One process writes it, any process may read it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._bytes: torch.Tensor | None = None

    def fill(self, plan: state_image.ImagePlan, copiers: concurrent.futures.ThreadPoolExecutor, threads: int) -> None:
        """Copy the state into the file. The file has no valid image in the meantime."""
        memory, view = self.make_room(plan.head.image_bytes)
        memory[: state_folder.BYTES] = bytes(state_folder.BYTES)
        memory[state_folder.BYTES : state_folder.BYTES + len(plan.index)] = plan.index
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
        memory[: state_folder.BYTES] = state_folder.encode_head(plan.head)

    def make_room(self, size: int) -> tuple[mmap.mmap, torch.Tensor]:
        """Return at least this many bytes, as a map and as a tensor. Raise DiskFull if there is no room."""
        if self._map is None or len(self._map) < size:
            self.close()
            self._map = _mapped(self.path, size)
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        assert self._bytes is not None
        return self._map, self._bytes

    def touch(self, size: int) -> None:
        """Allocate pages in advance, so that a later save is faster. This destroys the image."""
        memory, view = self.make_room(size)
        memory[: state_folder.BYTES] = bytes(state_folder.BYTES)
        for at in range(state_folder.BYTES, len(memory), PIECE):
            ctypes.memset(view.data_ptr() + at, 0, min(PIECE, len(memory) - at))

    def close(self) -> None:
        self._bytes = None
        if self._map is not None:
            with contextlib.suppress(BufferError):  # torch releases the buffer a little later
                self._map.close()
        self._map = None


def _mapped(path: pathlib.Path, size: int) -> mmap.mmap:
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        before = os.fstat(file.fileno()).st_size
        size = max(before, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # a missing page would raise SIGBUS later
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
    """Return True if the tensor's bytes are in CPU memory in the order of its elements."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


@contextlib.contextmanager
def _copied(
    pieces: Sequence[tuple[int, int, int]], copiers: concurrent.futures.ThreadPoolExecutor, threads: int
) -> Iterator[None]:
    """Copy large pieces with all threads. The other threads start at once, while the caller does something else.

    memmove releases the GIL, and a thread does not need it within a large piece.
    """
    left = iter(pieces)

    def work() -> None:
        for to, source, size in left:  # shared by all threads: next() on a list's iterator is atomic
            ctypes.memmove(to, source, size)

    others = [copiers.submit(work) for _ in range(threads - 1)] if len(pieces) > 1 else []
    try:
        yield
        work()
    finally:  # also after a failure: no thread may write into an image that is being filled again
        concurrent.futures.wait(others)
    for other in others:
        other.result()
