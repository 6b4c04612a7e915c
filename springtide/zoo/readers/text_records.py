"""The map-style data set behind every text reader: lines by index, cut into cells, made into batches.

In: a file, a `Format` (columns, how cells become a batch). Out: `record[i]`, `records.batch(indices)`. A malformed
line is met with a policy: "fail" raises `MalformedRecord` with its line number when it is read; "skip" looks through
the whole file when it is first indexed and leaves such lines out, so that index i is the same record for everyone.
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
    """How a kind of file is read."""

    name: str
    delimiter: str
    columns: int
    names: tuple[str, ...]
    """The header's cells, where the first line is one; cells are found by their place all the same."""
    parse: Callable[[cells.Cells], ParsedColumns]
    """Makes columns, and notes in `Cells.problems` the lines it cannot read."""
    make: Callable[..., Batch]
    """The batch of the columns."""

    @property
    def header(self) -> bool:
        return bool(self.names)


def checked_indices(indices: Any, records: int, name: str) -> NDArray[np.int64]:
    """Indices into so many records; BadInput for anything else."""
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
        """How many malformed lines were left out."""
        return self._lines.skipped

    @property
    def problems(self) -> tuple[str, ...]:
        """The first of the skipped lines: file, line number, what is wrong."""
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
        """The records with these indices as one batch and its labels."""
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
        """A file that begins with a record would lose it."""
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
        """Copy these lines side by side and cut them into cells."""
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
