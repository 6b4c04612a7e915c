"""Reader of MovieLens ratings: `ratings.csv` (header, commas), `ratings.dat` (`::` between cells), `u.data` (tabs).

In: such a file. Out: `MovieLens`, batches of `PairBatch` with the user and movie ids of the file. The label is 1 from
`liked` stars on, else 0. With `liked=None` the label is the number of stars.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.zoo.batches import PairBatch
from springtide.zoo.readers import file_errors, text_records
from springtide.zoo.readers.cells import Cells

_NAMES = ("user", "movie", "rating", "timestamp")


class MovieLens(text_records.TextRecords):
    """Ratings of a file. With `tables` (users, movies), ids must be below these row counts."""

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
            raise errors.BadInput(f"liked={liked!r}: wanted the stars from which the label is 1, or None for the stars")
        self._liked = liked
        wanted = "a row count, 1 or more"
        self._tables = (
            None if tables is None else tuple(validation.number(one, "tables", wanted, least=1) for one in tables)
        )
        name = file_errors.existing(path).name.removesuffix(".gz")
        old, oldest = name.endswith(".dat"), name.endswith(".data")
        # a split at each colon gives `a::b` an empty cell in the middle
        self._cells = (0, 2, 4, 6) if old else (0, 1, 2, 3)
        form = text_records.Format(
            name="movielens" if self._tables is None else f"movielens-{self._tables[0]}-{self._tables[1]}",
            delimiter=":" if old else "\t" if oldest else ",",
            columns=7 if old else 4,
            names=() if old or oldest else ("userId", "movieId", "rating", "timestamp"),
            parse=self._parse,
            make=PairBatch,
        )
        super().__init__(path, form, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> text_records.ParsedColumns:
        for between in set(range(max(self._cells))) - set(self._cells):
            cut.complain(~cut.empty(between), between, "what is between two colons", "nothing")
        ids = []
        for which in (0, 1):
            column = self._cells[which]
            value, bad = cut.integers(slice(column, column + 1))
            wrong = bad[:, 0] | cut.empty(column) | (value[:, 0] < 0)
            wanted = "a whole number"
            if self._tables is not None:
                wrong |= value[:, 0] >= self._tables[which]
                wanted = f"a whole number below {self._tables[which]}"
            cut.complain(wrong, column, _NAMES[which], wanted)
            ids.append(value[:, 0].copy())
        column = self._cells[2]
        stars, bad = cut.decimals(slice(column, column + 1))
        wrong = bad[:, 0] | cut.empty(column) | (stars[:, 0] < 0) | (stars[:, 0] > 5)
        cut.complain(wrong, column, "rating", "0 to 5 stars")
        y = stars[:, 0] if self._liked is None else stars[:, 0] >= self._liked
        return text_records.ParsedColumns(x={"user": ids[0], "item": ids[1]}, y=y.astype(np.float32))
