"""Writes the images of one server for one checkpoint: appended to a file that gets its name when it is whole.

In: a function that writes an image at a place of an open file (the native store's, without the GIL). Out: `Written`,
for the master's manifest. Nothing waits for the disk: pages outlive the process, and a torn file is known by its sums.
"""

import errno
import os
import pathlib
from collections.abc import Callable

from springtide.checkpoint.format.manifest import segment_name
from springtide.domain.core.resources import show_memory
from springtide.domain.model.checkpoints import SlotExtent, Written

WriteImage = Callable[[int, int], tuple[int, int, bool]]
"""Writes an image into the open file of the first argument at the place of the second: (bytes, checksum, full)."""


LEFT_FREE, OF_DISK = 64 << 20, 0.01  # bytes, and the part of a small disk, that checkpoints leave to others


class SegmentWriter:
    """One file being written. `close` gives it its name; left with an exception, it is removed."""

    def __init__(
        self, folder: pathlib.Path, life: str, number: int, part: int = 0, *, run: str, home: str = ""
    ) -> None:  # fmt: skip
        """`part`: the server has written others for this checkpoint. `home`: a folder for the files of this server."""
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
        """Add the image of a slot; `since` is the checkpoint it follows, where it does not come out full anyway."""
        length, checksum, full = write(self._file, self.size)
        piece = SlotExtent(slot, self.size, length, checksum, 0 if full else since)
        self._pieces[slot] = piece
        self.size += length
        leave_room(self._file)
        return piece

    def take_back(self, slot: int) -> None:
        """The image of this slot does not count after all."""
        self._pieces.pop(slot, None)

    def close(self) -> Written:
        """The file is whole: its name, and where everything lies in it."""
        os.close(self._file)
        self._open = False
        self._unfinished.rename(self.path)
        file = f"{self._home}/{self.path.name}" if self._home else self.path.name
        return Written(self.life, file, self.size, tuple(self._pieces.values()))

    def discard(self) -> None:
        """Give up; what was written is removed. Harmless after `close`."""
        if self._open:
            os.close(self._file)
            self._open = False
            self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> "SegmentWriter":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Removed unless it was closed."""
        self.discard()


def leave_room(file: int) -> None:
    """Raise what a full disk raises before it is full: the job's journal may be on it, and a job that cannot write its
    journal is over, while one that lacks a checkpoint trains on.
    """
    disk = os.fstatvfs(file)
    left = min(LEFT_FREE, OF_DISK * disk.f_blocks * disk.f_frsize)
    if disk.f_bavail * disk.f_frsize < left:
        why = f"{os.strerror(errno.ENOSPC)} but {show_memory(int(left))}, which are for the job's journal"
        raise OSError(errno.ENOSPC, why)
