"""Reads click logs in Parquet: a label column, numeric columns, and columns of ids or texts.

In: one or several files, and the names of their columns. Out: `ParquetClicks`, batches of `ClickBatch`. Whole
numbers are ids, texts become ids by a hash, and nulls become 0. The reader loads whole row groups and caches the
last few. Sequential or locally shuffled reads are therefore fast, and random single rows are slow. It needs pyarrow.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from springtide import errors
from springtide.domain.core.validation import takes_numbers
from springtide.zoo import array_files
from springtide.zoo.layers import Batch, BatchDataset, ClickBatch, checked_indices
from springtide.zoo.readers import cells
from springtide.zoo.readers.text_datasets import check_tables

Group = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]


class ParquetClicks(BatchDataset):
    """Rows of Parquet files. `tables` has the row counts into which ids are folded (one per sparse column, or one for
    all)."""

    @takes_numbers("self")
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        label: str,
        dense: Sequence[str] = (),
        sparse: Sequence[str] = (),
        tables: Sequence[int] | int | None = None,
        groups_kept: int = 4,
    ) -> None:
        arrow = _pyarrow()
        for name, columns in (("dense", dense), ("sparse", sparse)):
            if isinstance(columns, str):
                raise errors.BadInput(f"{name}={columns!r}: expected a list of columns, as in [{columns!r}]")
        self._columns = {"label": (label,), "dense": tuple(dense), "sparse": tuple(sparse)}
        self.tables = check_tables(tables, len(self._columns["sparse"]))
        self._kept: OrderedDict[int, Group] = OrderedDict()
        self._groups_kept = max(groups_kept, 1)
        self._groups: list[tuple[Path, int]] = []
        self._ends: list[int] = []
        for path in [paths] if isinstance(paths, str | Path) else paths:
            self._add(arrow, array_files.existing(path))
        if not self._ends or self._ends[-1] == 0:
            raise errors.BadInput(f"no rows in {paths}")

    def __len__(self) -> int:
        return self._ends[-1]

    def batch(self, indices: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        index = checked_indices(indices, len(self), str(self._groups[0][0]))
        dense = np.empty((len(index), len(self._columns["dense"])), dtype=np.float32)
        sparse = np.empty((len(index), len(self._columns["sparse"])), dtype=np.int64)
        y = np.empty(len(index), dtype=np.float32)
        where = np.searchsorted(self._ends, index, side="right")
        for group in np.unique(where):
            here = where == group
            row = index[here] - (self._ends[group - 1] if group else 0)
            counters, ids, labels = self._group(int(group))
            dense[here], sparse[here], y[here] = counters[row], ids[row], labels[row]
        return ClickBatch(torch.from_numpy(dense), torch.from_numpy(sparse)), torch.from_numpy(y)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}

    def _add(self, arrow: Any, path: Path) -> None:
        try:
            file = arrow.parquet.ParquetFile(path)
        except arrow.ArrowInvalid as error:
            raise errors.MalformedRecord(f"{path} is not a whole Parquet file ({error}); fetch it again") from error
        names = file.schema_arrow.names
        for column in (name for group in self._columns.values() for name in group):
            if column not in names:
                raise errors.UnknownName(f"column in {path}", column, names)
        for group in range(file.num_row_groups):
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + file.metadata.row_group(group).num_rows)
            self._groups.append((path, group))

    def _group(self, which: int) -> Group:
        if which in self._kept:
            self._kept.move_to_end(which)
            return self._kept[which]
        arrow = _pyarrow()
        path, group = self._groups[which]
        wanted = [name for names in self._columns.values() for name in names]
        try:
            table = arrow.parquet.ParquetFile(path).read_row_group(group, columns=list(dict.fromkeys(wanted)))
        except (arrow.ArrowException, OSError) as error:
            raise errors.MalformedRecord(
                f"{path}: row group {group} cannot be read ({' '.join(str(error).split())}); fetch the file again"
            ) from error
        self._check_labels(table, path, first=self._ends[which] - len(table))
        label = self._numbers(arrow, table, self._columns["label"][0], path)
        dense = [self._numbers(arrow, table, name, path) for name in self._columns["dense"]]
        sparse = [self._ids(arrow, table, name, path) for name in self._columns["sparse"]]
        ids = np.stack(sparse, axis=1) if sparse else np.empty((len(label), 0), dtype=np.int64)
        if self.tables is not None:
            ids = cells.fold(ids, np.asarray(self.tables))
        counters = np.stack(dense, axis=1) if dense else np.empty((len(label), 0), dtype=np.float32)
        self._kept[which] = (counters, ids, label)
        while len(self._kept) > self._groups_kept:
            self._kept.popitem(last=False)
        return self._kept[which]

    def _check_labels(self, table: Any, path: Path, *, first: int) -> None:
        """Raise an error if labels are missing, because such a row cannot be trained and a 0 would be wrong."""
        (name,) = self._columns["label"]
        missing = np.flatnonzero(np.asarray(table.column(name).is_null(nan_is_null=True)))
        if len(missing):
            raise errors.MalformedRecord(
                f"{path}: {name!r}, the label, is missing in {len(missing)} rows, the first is row "
                f"{first + missing[0]} of the data set; remove such rows from the file"
            )

    def _numbers(self, arrow: Any, table: Any, name: str, path: Path) -> NDArray[np.float32]:
        column = table.column(name).combine_chunks()
        types = arrow.types
        if not (types.is_floating(column.type) or types.is_integer(column.type) or types.is_boolean(column.type)):
            raise errors.BadInput(f"column {name!r} of {path} is {column.type}, expected numbers")
        return np.asarray(column.cast(arrow.float32(), safe=False).fill_null(0.0), dtype=np.float32)

    def _ids(self, arrow: Any, table: Any, name: str, path: Path) -> NDArray[np.int64]:
        column = table.column(name).combine_chunks()
        types = arrow.types
        if types.is_integer(column.type):
            return np.asarray(column.cast(arrow.int64(), safe=False).fill_null(0), dtype=np.int64)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not (types.is_string(column.type) or types.is_large_string(column.type) or types.is_binary(column.type)):
            raise errors.BadInput(f"column {name!r} of {path} is {column.type}, expected whole numbers or texts")
        present = np.asarray(column.is_valid())
        texts = column.cast(arrow.large_binary())
        _, offsets, data = texts.buffers()
        places = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
        raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        buffer = np.concatenate([raw, np.zeros(cells.PADDING, dtype=np.uint8)])
        starts, stops = places[:-1].copy(), places[1:].copy()
        return np.where(present & (stops > starts), cells.hash_cells(buffer, starts, stops), 0)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise errors.MissingExtra("reading Parquet", "parquet") from error
    return pyarrow
