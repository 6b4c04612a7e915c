"""Map-style data set for all readers of text files. An index of lines is split into cells, and the cells become
batches.

In: a file. A subclass converts its cells to a batch. Out: `records[i]`, `records.batch(indices)`. The index is a
folder beside the text, or in the user's temporary folder if the text's folder is read-only. A `.gz` file is unpacked
once. The policy "fail" raises `MalformedRecord` when a malformed line is read. The policy "skip" scans the whole
file at the first indexing and leaves such lines out, so index i means the same record in every process.
"""

import abc
import gzip
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from springtide import errors
from springtide.data.files import id_hash
from springtide.domain.core import validation
from springtide.zoo import array_files
from springtide.zoo.layers import Batch, BatchDataset, checked_indices
from springtide.zoo.readers import cells

POLICIES = ("fail", "skip")
_BLOCK = 1 << 23
_VERSION = 1
# number of problems to store in an index with skipped lines; the header has room for about 700 characters of each
_EXAMPLES = 5

Places = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
Check = Callable[[NDArray[np.uint8], Places, Places], dict[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedText:
    """A mapped text file and its lines."""

    path: Path
    text: NDArray[np.uint8]
    places: Places
    """Start and stop of each line without the line end, shape [lines, 2]."""
    skipped: int
    """Number of skipped malformed lines."""
    problems: tuple[str, ...]
    """The first problems, with line numbers."""


def lines_of(path: str | Path, kind: str, *, header: bool, check: Check | None) -> IndexedText:
    """Index the lines of a file, without the lines that `check` rejects. `kind` names the format and the policy."""
    source = array_files.existing(path)
    text, notes = _text(source), {"skipped": 0, "problems": []}
    lines = _good_lines(source, text, header, check, notes)
    content = f"{_VERSION} {kind} {_stamp(source)}"
    columns, found = array_files.cached_arrays(_homes(source), f".{source.name}.{kind}.lines", content, lines, notes)
    if not len(columns["places"]):
        hint = f"; {found['skipped']} were skipped, the first: {found['problems'][0]}" if found["skipped"] else ""
        raise errors.BadInput(f"{source} has no records{' after its header, the first line' if header else ''}{hint}")
    return IndexedText(
        path=source, text=text, places=columns["places"], skipped=found["skipped"], problems=tuple(found["problems"])
    )


def _good_lines(
    source: Path, text: NDArray[np.uint8], header: bool, check: Check | None, notes: dict[str, Any]
) -> Iterator[Columns]:
    """Yield the starts and stops of the lines that `check` accepts. Count the other lines in `notes`."""
    line = 1
    for starts, stops in _blocks(text):
        if header and line == 1:
            starts, stops, line = starts[1:], stops[1:], 2
        bad = check(text, starts, stops) if check is not None else {}
        for at, why in sorted(bad.items())[: _EXAMPLES - len(notes["problems"])]:
            notes["problems"].append(f"{source}, line {line + at}: {why}"[:600])
        line += len(starts)
        notes["skipped"] += len(bad)
        good = np.ones(len(starts), dtype=bool)
        good[list(bad)] = False
        yield {"places": np.stack([starts[good], stops[good]], axis=1)}


def _blocks(text: NDArray[np.uint8]) -> Iterator[tuple[Places, Places]]:
    """Yield starts and stops of the lines, some thousands at a time."""
    begin = 0
    for at in range(0, len(text), _BLOCK):
        ends = np.flatnonzero(text[at : at + _BLOCK] == ord("\n")).astype(np.int64) + at
        if at + _BLOCK >= len(text) and text[-1] != ord("\n"):
            ends = np.append(ends, len(text))
        if len(ends) == 0:
            continue
        starts = np.concatenate([[begin], ends[:-1] + 1]).astype(np.int64)
        begin = int(ends[-1]) + 1
        returns = (ends > starts) & (text[np.maximum(ends - 1, 0)] == ord("\r"))
        yield starts, ends - returns


def _text(source: Path) -> NDArray[np.uint8]:
    """Map the text of a file. A gzip file is unpacked once."""
    with source.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        columns, _ = array_files.cached_arrays(
            _homes(source), f".{source.name}.text", str(_stamp(source)), _unpacked(source)
        )
        if "text" in columns:
            return columns["text"]
    elif source.stat().st_size:
        return np.memmap(source, dtype=np.uint8, mode="r")
    raise errors.BadInput(f"{source} is empty")


def _unpacked(source: Path) -> Iterator[Columns]:
    try:
        with gzip.open(source, "rb") as packed:
            while block := packed.read(_BLOCK):
                yield {"text": np.frombuffer(block, dtype=np.uint8)}
    except (EOFError, gzip.BadGzipFile) as error:
        raise errors.BadInput(f"{source} is not a whole gzip file: {error}; fetch it again") from error


def _homes(source: Path) -> list[Path]:
    """Return the folders for derived files: the source's folder, and a private folder of this user."""
    where = hashlib.blake2b(str(source.parent.resolve()).encode(), digest_size=8).hexdigest()
    private = Path(tempfile.gettempdir()) / f"springtide-{os.getuid()}"
    # skip this folder, because files of another user are not trusted
    if private.exists() and private.stat().st_uid != os.getuid():
        return [source.parent]
    return [source.parent, private / where]


def _stamp(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "changed_ns": stat.st_mtime_ns}


class TextRecords(BatchDataset):
    """Records of a delimited text file. Subclasses describe the format, and parse cells."""

    kind: str
    """Name of the format, and of the settings that determine which lines are malformed."""
    delimiter: str
    columns: int
    names: tuple[str, ...] = ()
    """Cells of the header, if the first line is a header. Columns are found by position in any case."""
    make: Callable[..., Batch]
    """Class of the batch."""

    def __init__(self, path: str | Path, *, on_malformed: str = "fail") -> None:
        validation.choice(on_malformed, "policy for malformed lines", POLICIES)
        self._on_malformed = on_malformed
        self._lines = self._found(path)
        self.path = self._lines.path
        if self.names:
            self._check_header()

    @abc.abstractmethod
    def _parse(self, cut: cells.Cells) -> tuple[Columns, NDArray[np.float32]]:
        """Return the inputs by their name in the batch, and the labels. Record unreadable lines in `cut.problems`."""

    @property
    def skipped(self) -> int:
        """Number of skipped malformed lines."""
        return self._lines.skipped

    @property
    def problems(self) -> tuple[str, ...]:
        """First skipped lines: file, line number and problem."""
        return self._lines.problems

    def __len__(self) -> int:
        return len(self._lines.places)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        index = checked_indices(indices, len(self), str(self.path))
        cut = self._cut(self._lines.text, *self._lines.places[index].T)
        columns, y = self._parse(cut)
        if cut.problems:
            first = min(cut.problems)
            line = int(index[first]) + 1 + bool(self.names)
            raise errors.MalformedRecord(
                f"{self.path}, line {line}: {cut.problems[first]}; repair it or read with on_malformed='skip'"
            )
        x = {name: torch.from_numpy(column) for name, column in columns.items()}
        return type(self).make(**x), torch.from_numpy(y)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lines"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lines = self._found(self.path)

    def _check_header(self) -> None:
        """Raise an error if the first line is a record instead of the header, because the record would be lost."""
        text = self._lines.text
        stop = int(np.argmax(text[: self._lines.places[0, 0]] == ord("\n")))
        cut = self._cut(text, np.array([0]), np.array([stop - (text[stop - 1] == ord("\r"))]))
        self._parse(cut)
        if not cut.problems:
            raise errors.MalformedRecord(
                f"{self.path}, line 1 is a record, expected a header with the names of {self.columns} columns; "
                "add one as the first line, or this record would count as the header"
            )
        known = [repr(name) for name in self.names]
        for column, name in enumerate(known):
            if (found := cut.text(0, column)) != name and found in known:
                raise errors.MalformedRecord(
                    f"{self.path}, line 1: column {column + 1} is {found}, expected {name}: columns are read by "
                    f"position, not by name. Write them in this order: {', '.join(self.names)}"
                )

    def _found(self, path: str | Path) -> IndexedText:
        check = self._faults if self._on_malformed == "skip" else None
        kind = f"{self.kind}-{self._on_malformed}"
        return lines_of(path, kind, header=bool(self.names), check=check)

    def _cut(self, text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> cells.Cells:
        """Copy these lines side by side, and split them into cells."""
        lengths = stops - starts
        ends = np.cumsum(lengths)
        begins = ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        buffer = np.zeros(total + id_hash.PADDING, dtype=np.uint8)
        buffer[:total] = text[np.repeat(starts - begins, lengths) + np.arange(total)]
        return cells.split(buffer, begins, ends, self.delimiter, self.columns)

    def _faults(self, text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> dict[int, str]:
        cut = self._cut(text, starts, stops)
        self._parse(cut)
        return cut.problems
