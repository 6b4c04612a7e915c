"""Keeps the newest points of a time series in a file of a run, one JSON object a line.

When the file has twice as many lines as the limit, it is rewritten atomically. Readers skip a cut-off line.
"""

import logging
import pathlib
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from springtide import errors, private_files
from springtide.telemetry.events import as_disk_error

log = logging.getLogger(__name__)
T = TypeVar("T")


class Series(Generic[T]):
    """An open file of points of one type."""

    def __init__(self, path: pathlib.Path, kind: type[T], *, most: int) -> None:
        self.path, self._kind, self._most = path, kind, most
        self.points: list[T] = read(path, kind)[-most:]
        """Kept points, oldest first."""
        self._lines = len(self.points)
        self._behind = False
        """True if the file lacks some points."""
        if path.exists():  # drops a line that a crash has cut off
            self._write(self.points)

    def add(self, *points: T) -> None:
        """Append points. Points that a full disk rejects are written with the next points."""
        self.points = [*self.points, *points][-self._most :]
        self._lines += len(points)
        if self._behind or self._lines > 2 * self._most:
            self._write(self.points)
            return
        try:
            with private_files.opened(self.path, "ab") as file:
                file.write(_encoded(points))
        except OSError as error:
            self._fall_behind(error)

    def _write(self, points: Iterable[T]) -> None:
        try:
            private_files.replace(self.path, _encoded(points))
        except OSError as error:
            self._fall_behind(error)
            return
        self._lines, self._behind = len(self.points), False

    def _fall_behind(self, error: OSError) -> None:
        if not self._behind:
            log.warning("%s", as_disk_error(error, self.path))
        self._behind = True


def read(path: pathlib.Path, kind: type[T], *, strict: bool = False) -> list[T]:
    """Return all points of a file; none if the file does not exist. With `strict`, an invalid line raises an error that
    names the line, because a person wrote the file. Otherwise the line is skipped.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise errors.BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                found.append(msgspec.json.decode(line, type=kind))
        except msgspec.MsgspecError as error:
            if strict:
                raise errors.BadInput(f"{path}, line {number}: {error}; wanted a {kind.__name__} as JSON") from None
    return found


def _encoded(points: Iterable[object]) -> bytes:
    return b"".join(msgspec.json.encode(point) + b"\n" for point in points)
