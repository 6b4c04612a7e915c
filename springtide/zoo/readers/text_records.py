"""Map-style data set behind all text readers: lines by index, split into cells, made into batches.

In: a file, a `Format` (columns, and the conversion of cells to a batch). Out: `records[i]`, `records.batch(indices)`.
The policy "fail" raises `MalformedRecord` with the line number when a malformed line is read. The policy "skip" scans
the whole file at the first indexing and leaves such lines out, so index i means the same record in every process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from springtide import errors
from springtide.zoo.batches import Batch
from springtide.zoo.readers import cells, string_hash, text_lines

POLICIES = ("fail", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedColumns:
    """Lines as columns."""

    x: dict[str, NDArray[np.generic]]
    """Inputs by their name in the batch."""
    y: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of a kind of file."""

    name: str
    delimiter: str
    columns: int
    names: tuple[str, ...]
    """Cells of the header, if the first line is a header; columns are still found by position."""
    parse: Callable[[cells.Cells], ParsedColumns]
    """Function that makes columns, and records unreadable lines in `Cells.problems`."""
    make: Callable[..., Batch]
    """Function that makes the batch from the columns."""

    @property
    def header(self) -> bool:
        return bool(self.names)


def checked_indices(indices: Any, records: int, name: str) -> NDArray[np.int64]:
    """Return valid indices into this many records; BadInput otherwise."""
    given = np.asarray(indices)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise errors.BadInput(f"{name}: indices are {given.dtype} of shape {given.shape}; wanted whole numbers, 1-D")
    if len(given) and not (given.min() >= 0 and given.max() < records):
        raise errors.BadInput(f"{name}: indices from {given.min()} to {given.max()}; wanted 0 to {records - 1}")
    return given.astype(np.int64)


class TextRecords(Dataset[tuple[Batch, Tensor]]):
    """Records of a delimited text file."""

    def __init__(self, path: str | Path, form: Format, *, on_malformed: str = "fail") -> None:
        if on_malformed not in POLICIES:
            raise errors.UnknownName("policy for malformed lines", on_malformed, POLICIES)
        self._form = form
        self._on_malformed = on_malformed
        self._lines = self._found(path)
        self.path = self._lines.path
        if form.header:
            self._check_header()

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

    def __getitem__(self, index: int) -> tuple[Batch, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of the {len(self)} in {self.path}")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Batch, Tensor]]:
        x, y = self.batch(np.asarray(indices, dtype=np.int64))
        return [(self._form.make(*(leaf[i] for leaf in x)), y[i]) for i in range(len(y))]

    def batch(self, indices: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        """Return the records with these indices as one batch with labels."""
        index = checked_indices(indices, len(self), str(self.path))
        cut = self._cut(self._lines.text, *self._lines.places[index].T)
        parsed = self._form.parse(cut)
        if cut.problems:
            first = min(cut.problems)
            line = int(index[first]) + 1 + self._form.header
            raise errors.MalformedRecord(
                f"{self.path}, line {line}: {cut.problems[first]}; mend it or read with on_malformed='skip'"
            )
        x = {name: torch.from_numpy(column) for name, column in parsed.x.items()}
        return self._form.make(**x), torch.from_numpy(parsed.y)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lines"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lines = self._found(self.path)

    def _check_header(self) -> None:
        """Raise if the first line is a record instead of the header: the record would be lost."""
        text = self._lines.text
        stop = int(np.argmax(text[: self._lines.places[0, 0]] == ord("\n")))
        cut = self._cut(text, np.array([0]), np.array([stop - (text[stop - 1] == ord("\r"))]))
        self._form.parse(cut)
        if not cut.problems:
            raise errors.MalformedRecord(
                f"{self.path}, line 1: is a record, wanted a header with the names of {self._form.columns} columns; "
                "write one as the first line, else this record would be taken for it"
            )
        known = [repr(name) for name in self._form.names]
        for column, wanted in enumerate(known):
            if (found := cut.text(0, column)) != wanted and found in known:
                raise errors.MalformedRecord(
                    f"{self.path}, line 1: column {column + 1} is {found}, wanted {wanted}: columns are read by their "
                    f"place, not by their name. Write them in this order: {', '.join(self._form.names)}"
                )

    def _found(self, path: str | Path) -> text_lines.IndexedText:
        check = self._faults if self._on_malformed == "skip" else None
        kind = f"{self._form.name}-{self._on_malformed}"
        return text_lines.lines_of(path, kind, header=self._form.header, check=check)

    def _cut(self, text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> cells.Cells:
        """Copy these lines side by side and split them into cells."""
        lengths = stops - starts
        ends = np.cumsum(lengths)
        begins = ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        buffer = np.zeros(total + string_hash.PADDING, dtype=np.uint8)
        buffer[:total] = text[np.repeat(starts - begins, lengths) + np.arange(total)]
        return cells.split(buffer, begins, ends, self._form.delimiter, self._form.columns)

    def _faults(self, text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> dict[int, str]:
        cut = self._cut(text, starts, stops)
        self._form.parse(cut)
        return cut.problems
