"""Readers of public data sets in text files: Criteo, Avazu and MovieLens.

In: a file (or `.gz`). Out: batches of `ClickBatch` or `PairBatch` with labels. A hash turns categories into 64-bit
ids, and a missing category gets id 0. With `tables`, ids are folded into that many rows.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.files import id_hash
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.zoo import array_files
from springtide.zoo.layers import ClickBatch, PairBatch
from springtide.zoo.readers.cells import Cells
from springtide.zoo.readers.text_records import Columns, TextRecords

DENSE, SPARSE = 13, 26
_ODD = np.ones(256, dtype=bool)
_ODD[np.frombuffer(b"0123456789abcdefABCDEF\t", dtype=np.uint8)] = False


class CriteoTsv(TextRecords):
    """Criteo's TSV. `tables` has the row counts into which ids are folded (26, or one for all). None keeps 64-bit
    ids."""

    kind, delimiter, columns, make = "criteo", "\t", 1 + DENSE + SPARSE, ClickBatch

    @takes_numbers("self")
    def __init__(
        self, path: str | Path, *, tables: Sequence[int] | int | None = None, on_malformed: str = "fail"
    ) -> None:
        self.tables = check_tables(tables, SPARSE)
        super().__init__(path, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> tuple[Columns, NDArray[np.float32]]:
        label = read_label(cut, 0, "label")
        numbers, bad = cut.integers(slice(1, 1 + DENSE))
        for column in range(DENSE):
            cut.complain(bad[:, column], 1 + column, f"number {column + 1}", "a whole number or nothing")
        for column, wrong in enumerate(_not_hex(cut).T):
            cut.complain(wrong, 1 + DENSE + column, f"category {column + 1}", "hexadecimal digits or nothing")
        dense = np.sign(numbers) * np.log1p(np.abs(numbers))
        ids = cut.ids(slice(1 + DENSE, None))
        sparse = ids if self.tables is None else id_hash.fold(ids, np.asarray(self.tables))
        return {"dense": dense.astype(np.float32), "sparse": sparse}, label


def read_label(cut: Cells, column: int, name: str) -> NDArray[np.float32]:
    """Return the labels of a column; each cell must be 0 or 1."""
    value, bad = cut.integers(slice(column, column + 1))
    wrong = bad[:, 0] | cut.empty(column) | (value[:, 0] < 0) | (value[:, 0] > 1)
    cut.complain(wrong, column, name, "0 or 1")
    return value[:, 0].astype(np.float32)


def check_tables(tables: Sequence[int] | int | None, fields: int) -> tuple[int, ...] | None:
    """Return the row counts, one per field. Each table needs a row for "missing" and at least one more row."""
    if tables is None:
        return None
    counts = tuple(tables) if isinstance(tables, Iterable) else (tables,) * fields
    if len(counts) != fields:
        raise errors.BadInput(f"tables must be {fields} row counts of at least 2 each, or one for all; got {tables}")
    return tuple(validation.number(count, "tables", "row counts of at least 2 each", least=2) for count in counts)


def _not_hex(cut: Cells) -> NDArray[np.bool_]:
    """Return a mask of the category cells that have a character other than a hexadecimal digit, in the shape [lines,
    categories]."""
    starts, stops = cut.starts[:, 1 + DENSE :], cut.stops[:, 1 + DENSE :]
    wrong = np.zeros(starts.shape, dtype=bool)
    odd = np.flatnonzero(_ODD[cut.buffer])  # there are only a few: minus signs of numbers, and invalid characters
    if len(odd):
        place = np.searchsorted(odd, starts)
        wrong |= (place < len(odd)) & (odd[np.minimum(place, len(odd) - 1)] < stops)
    return wrong


CATEGORIES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{number}" for number in range(14, 22)),
)

_CLICK, _HOUR, _FIRST = 1, 2, 3  # column 0 is the id of the line


class AvazuCsv(TextRecords):
    """Avazu's CSV. `tables` has the row counts into which ids are folded (22, or one for all). None keeps 64-bit
    ids."""

    kind, delimiter, columns, make = "avazu", ",", _FIRST + len(CATEGORIES), ClickBatch
    names = ("id", "click", "hour", *CATEGORIES)

    @takes_numbers("self")
    def __init__(
        self, path: str | Path, *, tables: Sequence[int] | int | None = None, on_malformed: str = "fail"
    ) -> None:
        self.tables = check_tables(tables, 1 + len(CATEGORIES))
        super().__init__(path, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> tuple[Columns, NDArray[np.float32]]:
        label = read_label(cut, _CLICK, "click")
        stamp, bad = cut.integers(slice(_HOUR, _HOUR + 1))
        hour = stamp[:, 0] % 100
        wrong = bad[:, 0] | cut.empty(_HOUR) | (hour < 0) | (hour > 23)
        cut.complain(wrong, _HOUR, "hour", "YYMMDDHH")
        angle = hour * (2 * np.pi / 24)
        ids = np.concatenate([hour[:, None] + 1, cut.ids(slice(_FIRST, None))], axis=1)
        sparse = ids if self.tables is None else id_hash.fold(ids, np.asarray(self.tables))
        dense = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
        return {"dense": dense, "sparse": sparse}, label


_NAMES = ("user", "movie", "rating", "timestamp")


class MovieLens(TextRecords):
    """Ratings in a file of MovieLens. With `tables` (users, movies), ids must be below these row counts.

    The label is 1 from `liked` stars on; with `liked=None`, the label is the number of stars.
    """

    make = PairBatch

    @takes_numbers("self")
    def __init__(
        self,
        path: str | Path,
        *,
        liked: float | None = 4.0,
        tables: Sequence[int] | None = None,
        on_malformed: str = "fail",
    ) -> None:
        if tables is not None and (not isinstance(tables, Sequence) or len(tables) != 2):
            raise errors.BadInput(f"tables must be two row counts, users and movies; got {tables!r}")
        stars: Any = liked
        if stars is not None and not isinstance(stars, int | float):
            raise errors.BadInput(f"liked={liked!r}: expected the stars from which a label is 1, or None for stars")
        self._liked = liked
        expected = "a row count, 1 or more"
        self._tables = (
            None if tables is None else tuple(validation.number(table, "tables", expected, least=1) for table in tables)
        )
        name = array_files.existing(path).name.removesuffix(".gz")
        old, oldest = name.endswith(".dat"), name.endswith(".data")
        # splitting at each colon gives `a::b` an empty cell in the middle
        self._cells = (0, 2, 4, 6) if old else (0, 1, 2, 3)
        self.kind = "movielens" if self._tables is None else f"movielens-{self._tables[0]}-{self._tables[1]}"
        self.delimiter, self.columns = ":" if old else "\t" if oldest else ",", 7 if old else 4
        self.names = () if old or oldest else ("userId", "movieId", "rating", "timestamp")
        super().__init__(path, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> tuple[Columns, NDArray[np.float32]]:
        for between in set(range(max(self._cells))) - set(self._cells):
            cut.complain(~cut.empty(between), between, "the text between two colons", "nothing")
        ids = []
        for which in (0, 1):
            column = self._cells[which]
            value, bad = cut.integers(slice(column, column + 1))
            wrong = bad[:, 0] | cut.empty(column) | (value[:, 0] < 0)
            expected = "a whole number"
            if self._tables is not None:
                wrong |= value[:, 0] >= self._tables[which]
                expected = f"a whole number below {self._tables[which]}"
            cut.complain(wrong, column, _NAMES[which], expected)
            ids.append(value[:, 0].copy())
        column = self._cells[2]
        stars, bad = cut.decimals(slice(column, column + 1))
        wrong = bad[:, 0] | cut.empty(column) | (stars[:, 0] < 0) | (stars[:, 0] > 5)
        cut.complain(wrong, column, "rating", "0 to 5 stars")
        y = stars[:, 0] if self._liked is None else stars[:, 0] >= self._liked
        return {"user": ids[0], "item": ids[1]}, y.astype(np.float32)
