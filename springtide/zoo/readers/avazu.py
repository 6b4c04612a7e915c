"""Reader of Avazu's mobile advertising log: CSV with a header, a click, an hour and 21 categories.

In: `train.csv` (or `.gz`). Out: `AvazuCsv`, batches of `ClickBatch`. The 2 dense features are the hour of the day as a
point on a circle. The 22 ids are the hour of the day and the categories, hashed by `string_hash`. With `tables`, ids
are folded into that many rows.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from springtide.domain.core.validation import takes_numbers
from springtide.zoo.batches import ClickBatch
from springtide.zoo.readers import string_hash, text_records
from springtide.zoo.readers.cells import Cells
from springtide.zoo.readers.criteo import check_tables, read_label

CATEGORIES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{number}" for number in range(14, 22)),
)
DENSE, SPARSE = 2, 1 + len(CATEGORIES)
_CLICK, _HOUR, _FIRST = 1, 2, 3  # column 0 is the id of the line


class AvazuCsv(text_records.TextRecords):
    """Avazu's CSV. `tables` gives the row counts to fold ids into (22, or one for all); None keeps 64-bit ids."""

    @takes_numbers("self")
    def __init__(
        self, path: str | Path, *, tables: Sequence[int] | int | None = None, on_malformed: str = "fail"
    ) -> None:
        self.tables = check_tables(tables, SPARSE)
        form = text_records.Format(
            name="avazu",
            delimiter=",",
            columns=_FIRST + len(CATEGORIES),
            names=("id", "click", "hour", *CATEGORIES),
            parse=self._parse,
            make=ClickBatch,
        )
        super().__init__(path, form, on_malformed=on_malformed)

    def _parse(self, cut: Cells) -> text_records.ParsedColumns:
        label = read_label(cut, _CLICK, "click")
        stamp, bad = cut.integers(slice(_HOUR, _HOUR + 1))
        hour = stamp[:, 0] % 100
        wrong = bad[:, 0] | cut.empty(_HOUR) | (hour < 0) | (hour > 23)
        cut.complain(wrong, _HOUR, "hour", "YYMMDDHH")
        angle = hour * (2 * np.pi / 24)
        ids = np.concatenate([hour[:, None] + 1, cut.ids(slice(_FIRST, None))], axis=1)
        sparse = ids if self.tables is None else string_hash.fold(ids, np.asarray(self.tables))
        dense = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
        return text_records.ParsedColumns(x={"dense": dense, "sparse": sparse}, y=label)
