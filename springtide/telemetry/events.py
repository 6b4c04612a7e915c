"""Writes and reads the JSON-lines files of a run: the event log of a job, and time series (`Series`).

If the disk is full, lines are written later. A reader skips a line that a crash has cut off.
"""

import contextlib
import errno
import logging
import os
import pathlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from springtide import errors, private_files
from springtide.domain.core.validation import UNDECODABLE
from springtide.telemetry import output

log = logging.getLogger(__name__)
T = TypeVar("T")
BEGIN = b'{"at":'
MOST_UNWRITTEN = 10_000
"""Most events to keep in memory while the disk is full; older events are dropped. A job logs a few events per
second."""


class EventLog:
    """An open `events.jsonl`. While the disk is full, events stay in memory until there is room."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file = private_files.opened(path, "ab", buffering=0)  # the file stays open as long as the job runs
        self._unwritten: deque[bytes] = deque()
        self._torn = _ends_torn(path)
        """True if the file ends with a partial line, which the next event must not continue."""
        self.trouble: errors.UserError | None = None
        """Why the newest events are not in the file; None if the newest events are in the file."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event with the time of day. Credentials in the event are redacted."""
        redacted = output.redact_all(msgspec.to_builtins(fields))
        line = msgspec.json.encode({"at": round(time.time(), 3), "event": kind, **redacted})
        self._unwritten.append(line + b"\n")
        if len(self._unwritten) > MOST_UNWRITTEN:
            self._unwritten.popleft()
        self.write_rest()

    def write_rest(self) -> None:
        try:
            while self._unwritten:
                line = (b"\n" if self._torn else b"") + self._unwritten[0]
                written = self._file.write(line)
                self._torn = written != len(line)
                if not self._torn:
                    self._unwritten.popleft()
            self.trouble = None
        except OSError as error:
            self.trouble = as_disk_error(error, self.path)

    def close(self) -> None:
        """Close the file. If events are missing in the file, raise `trouble`."""
        self.write_rest()
        self._file.close()
        if self.trouble is not None:
            raise self.trouble


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return all events up to now. An incomplete last line is left for the next call."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [event for line in lines if line and (event := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, even after a partial line. Return None if the line has no event."""
    for begin in (0, line.rfind(BEGIN)):
        if begin >= 0:
            with contextlib.suppress(*UNDECODABLE):
                event = msgspec.json.decode(line[begin:], type=dict[str, Any])
                return event if event.keys() >= {"at", "event"} else None
    return None


def _ends_torn(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return bool(size) and os.pread(file.fileno(), 1, size - 1) != b"\n"


@contextlib.contextmanager
def disk_errors(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_disk_error(error, path) from error


def as_disk_error(error: OSError, path: pathlib.Path) -> errors.UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.DiskFull(
            f"no room left to write {path}; free some space, or choose another folder with --logs DIR"
        )
    return errors.BadInput(f"cannot write {path}: {error.strerror or error}; choose another folder with --logs DIR")


class Series(Generic[T]):
    """An open file with the newest `most` points of one type. When the file has twice as many lines, it is
    rewritten."""

    def __init__(self, path: pathlib.Path, kind: type[T], *, most: int) -> None:
        self.path, self._kind, self._most = path, kind, most
        self.points: list[T] = read_points(path, kind)[-most:]
        self._lines = len(self.points)
        self._behind = False
        if path.exists():  # rewrite the file, to drop a line that a crash has cut off
            self._write(self.points)

    def add(self, *points: T) -> None:
        """Append points. If the disk is full, these points are written later, together with others."""
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

    def thin(self) -> None:
        """Drop every second point but never the newest, so that half as many points cover the same time."""
        self.points = self.points[(len(self.points) + 1) % 2 :: 2]
        self._write(self.points)

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


def read_points(path: pathlib.Path, kind: type[T], *, strict: bool = False) -> list[T]:
    """Return all points of a file. Return no points if the file does not exist. With `strict`, an invalid line raises
    an error that names the line. Use `strict` for files that people write. Without `strict`, an invalid line is
    skipped.
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
        except UNDECODABLE as error:
            if strict:
                raise errors.BadInput(
                    f"{path}, line {number}: {error}; each line must be a {kind.__name__} as JSON"
                ) from None
    return found


def _encoded(points: Iterable[object]) -> bytes:
    return b"".join(msgspec.json.encode(point) + b"\n" for point in points)
