"""Map-style data sets of Parquet files, text files and frames, read by row group.

In: paths and columns. Out: `ColumnDataset`, whose batches are tensors by name. Its `row_groups` give `data.shards` an
order for shuffling in which a process decodes each row group only once an epoch. Next: row_groups.py reads, columns.py
converts.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data

from springtide import errors
from springtide.data import shards
from springtide.data.files import row_groups
from springtide.data.files.columns import (
    LABEL,
    BatchColumns,
    Decoded,
    Names,
    batch_columns,
    empty_matrix,
    kind_of,
    pyarrow,
)
from springtide.domain.core import validation

log = logging.getLogger(__name__)

Make = Callable[..., Any]


class ColumnDataset(data.Dataset[Any]):
    """Rows of files or of a frame. `batch(indices)` returns the entries as tensors, with the label if the data has one.

    The data set holds the decoded row groups that it used last, at most `shuffle_groups`.
    """

    def __init__(
        self, name: Any, groups: Sequence[row_groups.Group], columns: BatchColumns, *, make: Make, shuffle_groups: int
    ) -> None:
        together = validation.number(shuffle_groups, "shuffle_groups", "a whole number, 1 or more", least=1)
        self._groups = [group for group in groups if group.rows]
        if not self._groups:
            raise errors.BadInput(f"{name} has no rows, expected 1 or more")
        self._columns, self._make = columns, make
        self._held: dict[int, Decoded] = {}
        ends = np.cumsum([group.rows for group in self._groups], dtype=np.int64)
        self.row_groups = shards.RowGroups(ends, together)

    def __len__(self) -> int:
        return int(self.row_groups.ends[-1])

    def batch(self, indices: NDArray[np.int64]) -> Any:
        index = np.asarray(indices)
        if index.ndim != 1 or (len(index) and index.dtype.kind not in "iu"):
            raise errors.BadInput(f"indices are {index.dtype} of shape {index.shape}; expected whole numbers, 1-D")
        if len(index) and not (index.min() >= 0 and index.max() < len(self)):
            raise errors.BadInput(f"indices from {index.min()} to {index.max()}; expected 0 to {len(self) - 1}")
        ends = self.row_groups.ends
        where = np.searchsorted(ends, index, side="right")
        touched = np.unique(where).tolist()
        if len(touched) > 2 * self.row_groups.together and sum(self._groups[g].rows for g in touched) > 4 * len(index):
            warn_of_scattered_reads(self.row_groups.together)
        parts = []
        # the held groups first: a batch at the end of a window needs them before groups of the next window
        for group in sorted(touched, key=lambda number: number not in self._held):
            here = np.flatnonzero(where == group)
            rows = index[here] - (int(ends[group]) - self._groups[group].rows)
            decoded = self._decoded(group)
            parts.append((here, {name: column[rows] for name, column in decoded.items()}))
        x = {name: torch.from_numpy(_joined(name, parts, len(index))) for name in (parts[0][1] if parts else ())}
        y = x.pop(LABEL, None)
        return self._make(**x) if y is None else (self._make(**x), y)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or the batch of a list of indices."""
        if not isinstance(index, int | np.integer):
            return self.batch(np.asarray(index))
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        return self.__getitems__([int(index) % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        batch = self.batch(np.asarray(indices, dtype=np.int64))
        leaves, spec = torch.utils._pytree.tree_flatten(batch)
        return [spec.unflatten([leaf[row] for leaf in leaves]) for row in range(len(indices))]

    def sampler(self, seed: int = 0) -> "GroupSampler":
        """Return a sampler for a DataLoader that shuffles in the order in which row groups are read once."""
        return GroupSampler(self.row_groups, seed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}

    def _decoded(self, number: int) -> Decoded:
        found = self._held.pop(number, None)
        if found is None:
            while len(self._held) >= self.row_groups.together:
                del self._held[next(iter(self._held))]
            group = self._groups[number]
            first = int(self.row_groups.ends[number]) - group.rows
            found = self._columns.decoded(group.read(self._columns), group.place, first)
        self._held[number] = found
        return found


@functools.cache
def warn_of_scattered_reads(held: int) -> None:
    log.warning(
        "batches have samples of more row groups than the %d that are held: nearly every batch decodes them again, "
        "which is slow. In a plain DataLoader, use sampler=data.sampler() instead of shuffle=True; split data by file "
        "instead of by Subset",
        held,
    )


class GroupSampler(data.Sampler[int]):
    """Indices of a shuffled epoch. Each iteration is the next epoch, in a new order."""

    def __init__(self, groups: shards.RowGroups, seed: int) -> None:
        self._groups, self._seed, self.epoch = groups, seed, 0

    def __len__(self) -> int:
        return int(self._groups.ends[-1])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        key, self.epoch = shards.order_key(self._seed, self.epoch), self.epoch + 1
        for begin in range(0, len(self), 1 << 16):
            positions = np.arange(begin, min(begin + (1 << 16), len(self)), dtype=np.int64)
            yield from self._groups.shuffled(positions, key=key).tolist()


def read_parquet(
    paths: row_groups.Paths,
    *,
    label: str | Sequence[str] | None = None,
    floats: Names = (),
    ids: Names = (),
    buckets: int | Mapping[str, int] | None = None,
    lists: Mapping[str, str] | None = None,
    make: Make = dict,
    shuffle_groups: int = 4,
) -> ColumnDataset:
    """Return the rows of Parquet files as a map-style data set for `job.prepare`.

    paths: a file, a folder, a pattern such as "logs/*.parquet", or a list of them.
    label: column of the labels, float32. With several, the labels are a matrix.
    floats: columns to read as float32, by name; or {"dense": ["price", "age"]} for a matrix. Missing values are NaN.
    ids: columns to read as int64 ids, in the same form. Texts are hashed, and missing ones are 0. Lists are padded
        with 0. Without `floats` and `ids`, all columns except the label are read, by their types.
    buckets: range of the ids of a column, {"site": 100_000}, or of all id columns. Hashes integers too.
    lists: separators of lists that are written as texts, {"genres": "|"}.
    make: class of a batch's x, called with the entries as keyword arguments; a dict by default.
    shuffle_groups: row groups that are shuffled together. A process holds at most this many decoded row groups.
    """
    files = row_groups.files_of(paths, (".parquet", ".pq"))
    kinds = row_groups.parquet_kinds(files[0])
    columns = batch_columns(label=label, floats=floats, ids=ids, buckets=buckets, lists=lists or {}, kinds=kinds)
    row_groups.same_kinds(files, row_groups.parquet_kinds, columns, kinds)
    groups = [group for file in files for group in row_groups.parquet_groups(file)]
    return ColumnDataset(paths, groups, columns, make=make, shuffle_groups=shuffle_groups)


def read_csv(
    paths: row_groups.Paths,
    *,
    separator: str = ",",
    names: Sequence[str] | None = None,
    missing: Sequence[str] = ("",),
    label: str | Sequence[str] | None = None,
    floats: Names = (),
    ids: Names = (),
    buckets: int | Mapping[str, int] | None = None,
    lists: Mapping[str, str] | None = None,
    make: Make = dict,
    shuffle_groups: int = 4,
) -> ColumnDataset:
    """Return the records of text files as a map-style data set, like `read_parquet`.

    separator: one character between cells; a tab for TSV.
    names: names of the columns, for files without a header.
    missing: cells that stand for a missing value, such as "NULL". The list applies to all columns.
    """
    if not isinstance(separator, str) or len(separator) != 1:
        raise errors.BadInput(f"separator={separator!r}: expected one character, such as ',' or a tab")
    nulls = (missing,) if isinstance(missing, str) else tuple(missing)
    written = row_groups.CsvFormat(separator=separator, names=None if names is None else tuple(names), missing=nulls)
    files = row_groups.files_of(paths, (".csv", ".tsv", ".txt"))
    kinds = row_groups.csv_kinds(files[0], written)
    columns = batch_columns(label=label, floats=floats, ids=ids, buckets=buckets, lists=lists or {}, kinds=kinds)
    # a text file has names but no types: each is read with the types of the first
    row_groups.same_kinds(
        files, lambda file: {name: kinds.get(name, "") for name in written.header(file)[0]}, columns, kinds
    )
    groups = [group for file in files for group in row_groups.csv_groups(file, written, kinds)]
    return ColumnDataset(paths, groups, columns, make=make, shuffle_groups=shuffle_groups)


def from_frame(
    frame: Any,
    *,
    label: str | Sequence[str] | None = None,
    floats: Names = (),
    ids: Names = (),
    buckets: int | Mapping[str, int] | None = None,
    lists: Mapping[str, str] | None = None,
    make: Make = dict,
) -> ColumnDataset:
    """Return the rows of a pandas or Polars frame, or of a pyarrow table, as a map-style data set, like
    `read_parquet`."""
    arrow = pyarrow()
    if hasattr(frame, "to_arrow"):
        table = frame.to_arrow()
    elif type(frame).__module__.partition(".")[0] == "pandas":
        table = arrow.Table.from_pandas(frame, preserve_index=False)
    else:
        table = frame
    if not isinstance(table, arrow.Table):
        raise errors.BadInput(f"a {type(frame).__name__} is no frame: expected one of pandas, Polars or pyarrow.Table")
    kinds = {name.name: kind_of(name.type) for name in table.schema}
    columns = batch_columns(label=label, floats=floats, ids=ids, buckets=buckets, lists=lists or {}, kinds=kinds)
    return ColumnDataset("the frame", [row_groups.FrameGroup(table)], columns, make=make, shuffle_groups=1)


def _joined(name: str, parts: list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]], rows: int) -> NDArray[Any]:
    """Return a batch's column from its parts, each with the places of its rows. Lists of a part are padded further."""
    columns = [(here, columns[name]) for here, columns in parts]
    first = columns[0][1]
    width = max((column.shape[1] for _, column in columns if column.ndim == 2), default=None)
    out = np.empty(rows, dtype=first.dtype) if width is None else empty_matrix(rows, width, first.dtype)
    for here, column in columns:
        out[here if width is None else (here, slice(column.shape[1]))] = column
    return out
