"""Writes and reads the event log of a job, `events.jsonl`: one JSON object a line, flushed at once."""

import contextlib
import errno
import os
import pathlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from springtide import errors, private_files
from springtide.telemetry import redactor

BEGIN = b'{"at":'
"""Bytes with which every line begins."""
MOST_UNWRITTEN = 10_000
"""Most events kept in memory while the disk is full; older ones are dropped. A job logs a few a second."""


class EventLog:
    """An open `events.jsonl`. While the disk is full, events stay in memory; they are written when there is room."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file = private_files.opened(path, "ab", buffering=0)  # open as long as the job runs
        self._unwritten: deque[bytes] = deque()
        self._torn = _ends_torn(path)
        """True if the file ends with a partial line, which the next event must not continue."""
        self.trouble: errors.UserError | None = None
        """Why the newest events are not in the file; None if they are."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event with the time of day. Credentials in it are redacted."""
        told = redactor.redact_all(msgspec.to_builtins(fields))
        line = msgspec.json.encode({"at": round(time.time(), 3), "event": kind, **told})
        self._unwritten.append(line + b"\n")
        if len(self._unwritten) > MOST_UNWRITTEN:
            self._unwritten.popleft()
        self.write_rest()

    def write_rest(self) -> None:
        """Retry events that the disk did not accept."""
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
        """Close the file. Raise `trouble` if events are missing from it."""
        self.write_rest()
        self._file.close()
        if self.trouble is not None:
            raise self.trouble


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return all events so far. An incomplete last line is left for the next call.

    A writer that was killed, or had no disk space, leaves a partial line. The reader skips it and continues after it.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [event for line in lines if line and (event := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, even if a partial line precedes it; None if there is none."""
    for begin in (0, line.rfind(BEGIN)):
        if begin >= 0:
            with contextlib.suppress(msgspec.DecodeError):
                event = msgspec.json.decode(line[begin:], type=dict[str, Any])
                return event if event.keys() >= {"at", "event"} else None
    return None


def _ends_torn(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return bool(size) and os.pread(file.fileno(), 1, size - 1) != b"\n"


@contextlib.contextmanager
def disk_errors(path: pathlib.Path) -> Iterator[None]:
    """Turn an OSError within the block into the error to show for this file of the run."""
    try:
        yield
    except OSError as error:
        raise as_disk_error(error, path) from error


def as_disk_error(error: OSError, path: pathlib.Path) -> errors.UserError:
    """Return the error to show when a file of the run cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.DiskFull(
            f"no room left to write {path}; free some space, or choose another place with --logs DIR"
        )
    return errors.BadInput(f"cannot write {path}: {error.strerror or error}; choose another place with --logs DIR")
