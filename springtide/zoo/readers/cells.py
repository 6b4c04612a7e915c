"""Pure. Splits lines of delimited text into cells, and parses numbers and ids with array operations.

In: a byte buffer and the positions of its lines. Out: `Cells`, then columns. A fixed hash turns texts into 64-bit
ids. Quotes are not supported, because the data sets have none. Next: `text_datasets` through `text_records`.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from springtide.data.files.id_hash import hash_cells

Places = NDArray[np.int64]
Mask = NDArray[np.bool_]

_ZERO, _NINE, _MINUS, _POINT = ord("0"), ord("9"), ord("-"), ord(".")
_LONGEST_NUMBER = 18  # number of digits that always fit an int64
_SHOWN = 40  # how many characters of a bad cell a message shows at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Positions of cells. A line with a wrong number of cells has empty cells and an entry in `problems`."""

    buffer: NDArray[np.uint8]
    starts: Places
    """Start positions of the cells, shape [lines, columns]."""
    stops: Places
    """Stop positions of the cells, shape [lines, columns]."""
    found: Places
    """Number of cells of each line, shape [lines]."""
    problems: dict[int, str] = field(default_factory=dict)
    """First problem of each bad line, by line."""

    def text(self, line: int, column: int) -> str:
        raw = bytes(self.buffer[self.starts[line, column] : self.stops[line, column]])
        shown = raw.decode("utf-8", "backslashreplace")
        return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")

    def complain(self, bad: Mask, column: int, name: str, expected: str) -> None:
        """Record a problem of this column for all lines in `bad`."""
        for line in np.flatnonzero(bad):
            self.problems.setdefault(int(line), f"{name} is {self.text(int(line), column)}, expected {expected}")

    def empty(self, columns: slice | int) -> Mask:
        return np.asarray(self.starts[:, columns] == self.stops[:, columns])

    def integers(self, columns: slice) -> tuple[Places, Mask]:
        """Return whole numbers, and a mask of invalid cells. An empty cell is valid and counts as 0."""
        value, bad, points = _numbers(self.buffer, self.starts[:, columns], self.stops[:, columns])
        return value, bad | (points >= 0)

    def decimals(self, columns: slice) -> tuple[NDArray[np.float64], Mask]:
        """Return numbers with or without a decimal point, and a mask of invalid cells."""
        value, bad, points = _numbers(self.buffer, self.starts[:, columns], self.stops[:, columns])
        return value / 10.0 ** np.maximum(points, 0), bad

    def ids(self, columns: slice) -> Places:
        """Return 64-bit ids of the texts; 0 for empty cells."""
        starts, stops = self.starts[:, columns], self.stops[:, columns]
        return np.where(starts == stops, 0, hash_cells(self.buffer, starts, stops))


def split(buffer: NDArray[np.uint8], starts: Places, stops: Places, delimiter: str, columns: int) -> Cells:
    """Split lines into cells. `buffer` contains the lines in order, followed by `id_hash.PADDING` extra bytes."""
    marks = np.flatnonzero(buffer == ord(delimiter))
    line = np.searchsorted(starts, marks, side="right") - 1
    inside = (line >= 0) & (marks < stops[line])
    marks, line = marks[inside], line[inside]
    found = np.bincount(line, minlength=len(starts)) + 1
    fits = found == columns
    cell_starts = np.repeat(starts[:, None], columns, axis=1)
    cell_stops = cell_starts.copy()
    marks = marks[fits[line]].reshape(-1, columns - 1)
    cell_starts[fits, 1:] = marks + 1
    cell_stops[fits, :-1] = marks
    cell_stops[fits, -1] = stops[fits]
    cells = Cells(buffer=buffer, starts=cell_starts, stops=cell_stops, found=found)
    for bad in np.flatnonzero(~fits):
        cells.problems[int(bad)] = f"has {found[bad]} cells, expected {columns}"
    return cells


def _numbers(buffer: NDArray[np.uint8], starts: Places, stops: Places) -> tuple[Places, Mask, Places]:
    """Return the digits of each cell as one whole number, a mask of invalid cells, and the number of decimals (-1
    without a point)."""
    negative = (starts < stops) & (buffer[np.minimum(starts, len(buffer) - 1)] == _MINUS)
    at = starts + negative
    lengths = stops - at
    bad = (negative & (lengths == 0)) | (lengths > _LONGEST_NUMBER)
    value = np.zeros(starts.shape, dtype=np.int64)
    points = np.full(starts.shape, -1, dtype=np.int64)
    for place in range(min(int(lengths.max(initial=0)), _LONGEST_NUMBER)):
        here = (place < lengths) & ~bad
        letter = buffer[np.where(here, at + place, 0)]
        digit = here & (letter >= _ZERO) & (letter <= _NINE)
        point = here & (letter == _POINT) & (points < 0) & (lengths > 1)
        bad |= here & ~digit & ~point
        value = np.where(digit, value * 10 + letter - _ZERO, value)
        points = np.where(point, 0, points + (digit & (points >= 0)))
    return np.where(negative, -value, value), bad, points
