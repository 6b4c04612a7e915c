"""Reader of Criteo's display advertising log: TSV with a label, 13 whole numbers and 26 categories.

In: `train.txt` (or `.gz`). Out: `CriteoTsv`, batches of `ClickBatch`. Any cell may be missing. A number n becomes
sign(n) log(1 + |n|), and a missing number becomes 0. Categories become 64-bit ids by `string_hash`, and a missing
category becomes id 0. With `tables`, ids are folded into that many rows.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.zoo.batches import ClickBatch
from springtide.zoo.readers import string_hash, text_records
from springtide.zoo.readers.cells import Cells

DENSE, SPARSE = 13, 26
_ODD = np.ones(256, dtype=bool)
_ODD[np.frombuffer(b"0123456789abcdefABCDEF\t", dtype=np.uint8)] = False


class CriteoTsv(text_records.TextRecords):
    """Criteo's TSV. `tables` gives the row counts to fold ids into (26, or one for all); None keeps 64-bit ids."""

    @takes_numbers("self")
    def __init__(
        self, path: str | Path, *, tables: Sequence[int] | int | None = None, on_malformed: str = "fail"
    ) -> None:
        self.tables = check_tables(tables, SPARSE)
        form = text_records.Format(
            name="criteo",
            delimiter="\t",
            columns=1 + DENSE + SPARSE,
            names=(),
            parse=self._parse,
            make=ClickBatch,
        )
        super().__init__(path, form, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> text_records.ParsedColumns:
        label = read_label(cut, 0, "label")
        numbers, bad = cut.integers(slice(1, 1 + DENSE))
        for column in range(DENSE):
            cut.complain(bad[:, column], 1 + column, f"number {column + 1}", "a whole number or nothing")
        for column, wrong in enumerate(_not_hex(cut).T):
            cut.complain(wrong, 1 + DENSE + column, f"category {column + 1}", "hexadecimal digits or nothing")
        dense = np.sign(numbers) * np.log1p(np.abs(numbers))
        ids = cut.ids(slice(1 + DENSE, None))
        sparse = ids if self.tables is None else string_hash.fold(ids, np.asarray(self.tables))
        return text_records.ParsedColumns(x={"dense": dense.astype(np.float32), "sparse": sparse}, y=label)


def read_label(cut: Cells, column: int, name: str) -> NDArray[np.float32]:
    """Return the labels of a column; each cell must be 0 or 1."""
    value, bad = cut.integers(slice(column, column + 1))
    wrong = bad[:, 0] | cut.empty(column) | (value[:, 0] < 0) | (value[:, 0] > 1)
    cut.complain(wrong, column, name, "0 or 1")
    return value[:, 0].astype(np.float32)


def check_tables(tables: Sequence[int] | int | None, fields: int) -> tuple[int, ...] | None:
    """Return row counts, one per field; each table needs a row for "missing" and at least one more."""
    if tables is None:
        return None
    each = tuple(tables) if isinstance(tables, Iterable) else (tables,) * fields
    if len(each) != fields:
        raise errors.BadInput(f"tables must be {fields} row counts of at least 2 each, or one for all; got {tables}")
    return tuple(validation.number(one, "tables", "row counts of at least 2 each", least=2) for one in each)


def _not_hex(cut: Cells) -> NDArray[np.bool_]:
    """Return a mask of category cells with other characters than hexadecimal digits: [lines, categories]."""
    starts, stops = cut.starts[:, 1 + DENSE :], cut.stops[:, 1 + DENSE :]
    wrong = np.zeros(starts.shape, dtype=bool)
    odd = np.flatnonzero(_ODD[cut.buffer])  # few: minus signs of numbers, and invalid characters
    if len(odd):
        place = np.searchsorted(odd, starts)
        wrong |= (place < len(odd)) & (odd[np.minimum(place, len(odd) - 1)] < stops)
    return wrong
