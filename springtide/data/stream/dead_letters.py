"""Store records that cannot be trained (dead letters): in a folder, in a stream, or only as a count.

In: letters from data/stream/record_filter.py. Out: JSON lines or records, with the reason and the bytes. If the
destination fails, letters are lost, but the job continues.
"""

import base64
import json
import math
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from springtide import errors
from springtide.data.stream.record_filter import DeadLetter
from springtide.data.stream.stream import StreamWriter, open_stream

# limit per process: some hundred thousand letters, so that a stream of bad records fills no disk
MOST_BYTES = 256 * 2**20


class DeadLetters(Protocol):
    """Destination of dead letters."""

    lost: int
    """Number of letters that could not be stored."""
    why: str
    """First error; empty while all letters were stored."""

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Store these letters."""

    def close(self) -> None:
        """Close the destination."""


def open_dead_letters(where: str | None, *, most_bytes: int = MOST_BYTES) -> DeadLetters:
    """Open a folder or the URL of a stream; None only counts. Raise UserError for an invalid destination."""
    if where is None:
        return DiscardedLetters()
    if "://" in where:
        stream = open_stream(where)
        return LetterStream(stream.writer(), stream.partitions(), most_bytes)
    return LetterFolder(Path(where), most_bytes)


class DiscardedLetters:
    """Destination that stores nothing; the caller counts the letters."""

    lost = 0
    why = ""

    def add(self, letters: Sequence[DeadLetter]) -> None: ...

    def close(self) -> None: ...


class LetterFolder:
    """A file of JSON lines for each process, created with the first letter."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.BadInput(f"dead letters cannot go to {folder}: {error.strerror}; give a folder") from None
        self.path = folder / f"dead-{socket.gethostname()}-{os.getpid()}.jsonl"
        self.lost, self.why = 0, ""
        self._left, self._full = most_bytes, _full(most_bytes)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        lines, self._left = _within(letters, self._left)
        if len(lines) < len(letters):
            self.lost, self.why = self.lost + len(letters) - len(lines), self.why or self._full
        if not lines:
            return
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            self.lost += len(lines)
            self.why = self.why or f"{self.path} cannot be written: {error.strerror}"

    def close(self) -> None:
        """Do nothing: every line is written immediately."""


class LetterStream:
    """A stream with a record for each letter. The partition is the letter's partition, modulo the number of
    partitions.
    """

    def __init__(self, writer: StreamWriter, partitions: int, most_bytes: int = MOST_BYTES) -> None:
        self.lost, self.why = 0, ""
        self._writer, self._partitions = writer, partitions
        self._left, self._full = most_bytes, _full(most_bytes)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        lines, self._left = _within(letters, self._left)
        if len(lines) < len(letters):
            self.lost, self.why = self.lost + len(letters) - len(lines), self.why or self._full
        for letter, line in zip(letters, lines, strict=False):
            try:
                self._writer.append(letter.partition % self._partitions, line, np.array([len(line)]))
            except (errors.SpringtideError, OSError) as error:
                self.lost, self.why = self.lost + 1, self.why or str(error)

    def close(self) -> None:
        try:
            self._writer.close()
        except (errors.SpringtideError, OSError):
            self.lost += 1


def line_of(letter: DeadLetter) -> bytes:
    """Return a letter as a line of JSON, with its bytes in base64."""
    fields = {
        "partition": letter.partition,
        "offset": letter.offset,
        "why": letter.why,
        "detail": letter.detail,
        "appended_at": letter.appended_at,
        "event_at": None if math.isnan(letter.event_at) else letter.event_at,
        "bytes": letter.size,
        "body": base64.b64encode(letter.body).decode(),
    }
    return json.dumps(fields).encode() + b"\n"


def _full(most_bytes: int) -> str:
    return f"{most_bytes / 2**20:g} MiB of letters are kept by a process at the most, and this one has as many"


def _within(letters: Sequence[DeadLetter], left: int) -> tuple[list[bytes], int]:
    """Return the lines of the first letters that still fit, and the remaining bytes."""
    lines: list[bytes] = []
    for letter in letters:
        line = line_of(letter)
        if len(line) > left:
            return lines, 0
        lines.append(line)
        left -= len(line)
    return lines, left
