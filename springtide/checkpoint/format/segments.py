"""Writes the images of one server for one checkpoint into a segment file.

In: a function that writes an image into an open file (the native store's, without the GIL). Out: `Written`, for the
master's manifest. The file gets its name when it is complete. The writer does not wait for the disk: pages outlive the
process, and checksums reveal a torn file.
"""

import errno
import os
import pathlib
from collections.abc import Callable

from springtide.checkpoint.format.manifest import segment_name
from springtide.domain.core.resources import show_memory
from springtide.domain.model.checkpoints import SlotExtent, Written

WriteImage = Callable[[int, int], tuple[int, int, bool]]
"""Writes an image into the open file (first argument) at an offset (second): (bytes, checksum, full)."""


LEFT_FREE, OF_DISK = 64 << 20, 0.01  # bytes, and share of a small disk, that checkpoints leave free


class SegmentWriter:
    """A segment file being written. `close` gives the file its name; an exception removes the file."""

    def __init__(
        self, folder: pathlib.Path, life: str, number: int, part: int = 0, *, run: str, home: str = ""
    ) -> None:
        """`part` is the number of earlier files of this server for this checkpoint. `home` is a subfolder for its
        files.
        """
        self.life, self.number = life, number
        self._home, folder = home, folder / home
        self.path = folder / segment_name(f"{life}+{part}" if part else life, number, run)
        self._unfinished = self.path.with_suffix(".part")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._open = True
        self.size = 0
        self._pieces: dict[int, SlotExtent] = {}

    def append(self, slot: int, write: WriteImage, *, since: int = 0) -> SlotExtent:
        """Append the image of a slot. `since` is the checkpoint on which an increment builds; a full image
        ignores it.
        """
        length, checksum, full = write(self._file, self.size)
        piece = SlotExtent(slot, self.size, length, checksum, 0 if full else since)
        self._pieces[slot] = piece
        self.size += length
        leave_room(self._file)
        return piece

    def take_back(self, slot: int) -> None:
        """Drop the image of this slot."""
        self._pieces.pop(slot, None)

    def close(self) -> Written:
        """Close the file, give it its name, and return the position of each image."""
        os.close(self._file)
        self._open = False
        self._unfinished.rename(self.path)
        file = f"{self._home}/{self.path.name}" if self._home else self.path.name
        return Written(self.life, file, self.size, tuple(self._pieces.values()))

    def discard(self) -> None:
        """Remove an unfinished file. Harmless after `close`."""
        if self._open:
            os.close(self._file)
            self._open = False
            self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def leave_room(file: int) -> None:
    """Raise a disk-full error before the disk is full, because the job's journal may be on it. A job fails without its
    journal, but continues without a checkpoint.
    """
    disk = os.fstatvfs(file)
    left = min(LEFT_FREE, OF_DISK * disk.f_blocks * disk.f_frsize)
    if disk.f_bavail * disk.f_frsize < left:
        why = f"{os.strerror(errno.ENOSPC)} but {show_memory(int(left))}, which are for the job's journal"
        raise OSError(errno.ENOSPC, why)
