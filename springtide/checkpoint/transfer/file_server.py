"""Receives and serves segment files in a server's folder: its own files, and copies for other servers.

In: the list of another server's files, and the missing files in parts. Out: complete files, each named only after its
size and checksum match; ranges of files for readers. Next: `checkpoint.format.reader` reads a copy if the original file
is lost.
"""

import contextlib
import os
import pathlib
import re
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from springtide import errors
from springtide.checkpoint.format.manifest import number_in
from springtide.checkpoint.format.segments import leave_room

PART_BYTES = 4 << 20
NAME = re.compile(r"server-\d+\.\d+(\+\d+)?-\d{6,}\.[0-9a-z]+\.seg")


class FilePart(NamedTuple):
    """A part of a file."""

    offset: int
    content: bytes
    last: bool
    checksum: int
    """CRC-32 of the file up to the end of this part."""


def parts(path: pathlib.Path) -> Iterator[FilePart]:
    """Yield a file in parts, from start to end. The last part may be empty."""
    with open(path, "rb", buffering=0) as file:
        size, offset, checksum = os.fstat(file.fileno()).st_size, 0, 0
        while True:
            content = file.read(min(PART_BYTES, size - offset)) or b""
            checksum = zlib.crc32(content, checksum)
            last = offset + len(content) >= size or not content
            yield FilePart(offset, content, last, checksum)
            if last:
                return
            offset += len(content)


class SegmentCopies:
    """Files that one server keeps for other servers. One thread adds files, another thread may sweep."""

    def __init__(self, folder: pathlib.Path, names: "re.Pattern[str]" = NAME) -> None:
        self._folder, self._names = folder, names
        self._coming: dict[str, tuple[int, int]] = {}
        """Bytes and checksum received so far, by file name."""
        self._claimed: set[str] = set()
        """Files that other servers have announced since the last sweep, for a checkpoint that is not complete yet."""
        self._lock = threading.Lock()

    def lacks(self, files: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Return the files without a copy of the right size. All listed files survive the next sweep."""
        paths = [(name, self._path(name), size) for name, size in files]
        with self._lock:
            self._claimed |= {name for name, _, _ in paths}
            return tuple(name for name, path, size in paths if self._size(path) != size)

    def sweep(self, needed: Collection[str], upto: int) -> list[str]:
        """Remove segment files that no checkpoint up to `upto` needs. Return their names.

        Files that other servers have announced for the next checkpoint stay, because those servers may be faster.
        """
        gone: list[str] = []
        with self._lock, contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            stays, self._claimed = {*needed, *self._claimed}, set()
            for entry in entries:
                whole = entry.name.removesuffix(".part").removesuffix(".seg") + ".seg"
                if self._names.fullmatch(whole) and whole not in stays and (number_in(whole) or 0) <= upto:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                        gone.append(entry.name)
        return gone

    def take(self, name: str, part: FilePart) -> None:
        """Write a part of a file. The last part gives the file its name. BadInput if the part does not continue the
        file.
        """
        path = self._path(name)
        at, checksum = self._coming.pop(name, (0, 0)) if part.offset else (0, 0)
        if part.offset != at:
            raise errors.BadInput(f"a part of {name} at {part.offset}, wanted {at}")
        unfinished = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "r+b" if part.offset else "wb") as file:
                file.seek(part.offset)
                file.write(part.content)
                leave_room(file.fileno())
            checksum = zlib.crc32(part.content, checksum)
            if not part.last:
                self._coming[name] = (at + len(part.content), checksum)
                return
            if checksum != part.checksum:
                unfinished.unlink()
                raise errors.BadInput(f"{name} has come with another sum than it was sent with")
            unfinished.rename(path)
        except OSError as error:
            raise errors.DiskFull(f"cannot write to {self._folder}: {error.strerror or error}") from error

    def run(self, name: str, offset: int, length: int) -> tuple[int, bytes]:
        """Return the size of a file (-1 if it does not exist), and a range of its bytes."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                return os.fstat(file.fileno()).st_size, os.pread(file.fileno(), min(length, PART_BYTES), offset)
        except FileNotFoundError:
            return -1, b""
        except OSError as error:
            raise errors.BadInput(f"{name} cannot be read: {error.strerror or error}") from error

    def _path(self, name: str) -> pathlib.Path:
        if not self._names.fullmatch(name):
            kind = "segment file of a server" if self._names is NAME else "file that is kept here"
            raise errors.BadInput(f"{name!r} is no {kind}")
        return self._folder / name

    @staticmethod
    def _size(path: pathlib.Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
