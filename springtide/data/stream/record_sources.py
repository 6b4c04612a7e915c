"""Where records that are produced come from: a counter, lines of a file, pieces of one size of a file.

In: `springtide produce`. Out: bodies of records, one after the other. Next: produce.py, which puts them in envelopes.
Clicks are made by zoo/clicklog/stream.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from springtide import errors
from springtide.data.stream.decode import Field
from springtide.data.stream.records import Bytes

COUNTER_FIELDS: dict[str, Field] = {"key": "i8", "serial": "i8"}
"""What records of the counter hold, for `decode.Fixed`."""


class Maker(Protocol):
    """Makes records."""

    def take(self, first: int, count: int) -> Bytes | list[bytes]:
        """Records number `first` to ``first + count`` of all that are made: rows of one size, or bytes each.

        Asked in order. Fewer than asked for: there are no more.
        """


class Counter:
    """Record i holds its number, and the number modulo `keys`: whoever counts keys knows what must come out."""

    def __init__(self, keys: int = 1000) -> None:
        if keys < 0:
            raise errors.BadInput(f"a counter of {keys} keys is not possible; 0 makes every key a new one")
        self._keys = keys

    def take(self, first: int, count: int) -> Bytes:
        """16 bytes each."""
        serial = np.arange(first, first + count, dtype="<i8")
        both = np.stack([serial % self._keys if self._keys else serial, serial], axis=1)
        return np.ascontiguousarray(both).view(np.uint8).reshape(count, 16)


class Lines:
    """A line of a text file is a record, without its end."""

    def __init__(self, path: Path) -> None:
        self._lines = _lines(_found(path))

    def take(self, first: int, count: int) -> list[bytes]:
        """The next lines."""
        return [line for _, line in zip(range(count), self._lines, strict=False)]


class Pieces:
    """A file of records of one size."""

    def __init__(self, path: Path, size: int) -> None:
        if size < 1:
            raise errors.BadInput(f"records of {size} bytes are not possible; give 1 or more")
        whole = _found(path).stat().st_size
        if whole % size:
            raise errors.BadInput(f"{path} has {whole} bytes, which are not whole records of {size}; give another size")
        self._rows: Bytes = np.memmap(path, np.uint8, "r").reshape(-1, size) if whole else np.empty((0, size), np.uint8)

    def take(self, first: int, count: int) -> Bytes:
        """The next rows."""
        return self._rows[first : first + count]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def _found(path: Path) -> Path:
    if not path.is_file():
        raise errors.MissingFile(f"there is no file {path}; give one whose lines or pieces are the records")
    return path
