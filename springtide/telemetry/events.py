"""The story of a job: one JSON object a line, appended and flushed as it happens.

In: the master tells what changed and why. Out: `events.jsonl`, which every view of a job reads.
"""

import errno
import pathlib
import time
from typing import Any, TextIO

import msgspec

from springtide import errors


class EventLog:
    """An open `events.jsonl`. A full disk is raised as `DiskFull`, naming the file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the job lives

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event with the time of day."""
        line = msgspec.json.encode({"at": round(time.time(), 3), "event": kind, **fields})
        try:
            self._file.write(line.decode() + "\n")
            self._file.flush()
        except OSError as error:
            raise as_disk_error(error, self.path) from error

    def close(self) -> None:
        """Close the file; what could not be written has been said before."""
        try:
            self._file.close()
        except OSError as error:
            raise as_disk_error(error, self.path) from error


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The story so far. A last line that is being written is left for the next time."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line]


def as_disk_error(error: OSError, path: pathlib.Path) -> errors.UserError:
    """The error to show when a file of the run cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.DiskFull(
            f"no room left to write {path}; free some space, or choose another place with --logs DIR"
        )
    return errors.BadInput(f"cannot write {path}: {error.strerror or error}; choose another place with --logs DIR")
