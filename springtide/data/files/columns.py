"""Converts columns of an Arrow table to arrays: floats, ids and lists of them.

In: the names of the columns of a batch, and the table of a row group. Out: an array or a `Ragged` for each entry of a
batch. Missing floats are NaN and missing ids are 0. Next: dataset.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.files import id_hash

Names = str | Sequence[str] | Mapping[str, str | Sequence[str]]
LABEL = "\0label"  # key of the label, which no column has

TEXTS, INTEGERS, DECIMALS, BOOLEANS, NULLS = "texts", "whole numbers", "numbers", "booleans", "nulls only"


def pyarrow() -> Any:
    """Return pyarrow with the modules that read files."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise errors.MissingExtra("reading Parquet, CSV and frames", "parquet") from error
    return pyarrow


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths, one after the other in `values`. List i ends before `ends[i]`."""

    values: NDArray[Any]
    ends: NDArray[np.int64]

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return these lists as a matrix, each padded to the length of the longest: with 0 for ids, and NaN for
        floats.
        """
        begins = np.concatenate([[0], self.ends[:-1]])[rows]
        lengths = self.ends[rows] - begins
        out = empty_matrix(len(rows), int(lengths.max(initial=0)), self.values.dtype)
        cells = np.arange(out.shape[1]) < lengths[:, None]
        out[cells] = self.values[(begins[:, None] + np.arange(out.shape[1]))[cells]]
        return out


def empty_matrix(rows: int, columns: int, dtype: Any) -> NDArray[Any]:
    return np.full((rows, columns), np.nan if dtype == np.float32 else 0, dtype=dtype)


Decoded = dict[str, NDArray[Any] | Ragged]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """The entries of a batch, and the columns of each: a name, or a list of names that become a matrix."""

    label: str | tuple[str, ...] | None
    floats: dict[str, str | tuple[str, ...]]
    ids: dict[str, str | tuple[str, ...]]
    buckets: int | dict[str, int] | None = None
    """Range of hashed ids: for all columns, or by entry or column."""
    lists: dict[str, str] = field(default_factory=dict)
    """Separators of the lists that are written as texts, by column."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the columns to read."""
        entries = [*self.floats.values(), *self.ids.values(), *(() if self.label is None else [self.label])]
        return iter(dict.fromkeys(name for entry in entries for name in _listed(entry)))

    def is_id(self, column: str) -> bool:
        return column in _all_names(self.ids)

    def buckets_of(self, column: str) -> int | None:
        if not isinstance(self.buckets, dict):
            return self.buckets
        entries = (entry for entry, names in self.ids.items() if column in _listed(names))
        return next((self.buckets[name] for name in (column, *entries) if name in self.buckets), None)

    def decoded(self, table: Any, place: str, first: int) -> Decoded:
        """Convert the table of a row group. `place` and `first`, the index of its first sample, are for errors."""
        out: Decoded = {}
        for entry, names in self.floats.items():
            out[entry] = _stacked(names, lambda name: _Column(table, name, place, self.lists).floats())
        for entry, names in self.ids.items():
            out[entry] = _stacked(
                names, lambda name: _Column(table, name, place, self.lists).ids(self.buckets_of(name))
            )
        if self.label is not None:
            out[LABEL] = _stacked(self.label, lambda name: _labels(table, name, place, first))
        return out


def batch_columns(
    *,
    label: str | Sequence[str] | None,
    floats: Names,
    ids: Names,
    buckets: int | Mapping[str, int] | None,
    lists: Mapping[str, str],
    kinds: Mapping[str, str],
) -> BatchColumns:
    """Check the user's arguments against the columns of the first file. `kinds` has the kind of each column. Without
    `floats` and `ids`, take every column except the label."""
    known = sorted(kinds)
    if label is not None and not isinstance(label, str):
        label = tuple(label)
    if not floats and not ids:
        left = [name for name in kinds if name not in _listed(label or ())]
        for name in left:
            if kinds[name].removeprefix("lists of ") not in (TEXTS, INTEGERS, DECIMALS, BOOLEANS, NULLS):
                raise errors.BadInput(f"column {name!r} has {kinds[name]}: choose columns with floats= and ids=")
        floats = [name for name in left if kinds[name].removeprefix("lists of ") in (DECIMALS, BOOLEANS)]
        ids = [name for name in left if name not in floats]
    entries = _entries("floats", floats), _entries("ids", ids)
    if both := sorted({*entries[0]} & {*entries[1]}):
        raise errors.BadInput(f"{both[0]!r} is in floats and in ids: expected one of them")
    if isinstance(buckets, Mapping):
        names = [*entries[1], *_all_names(entries[1])]
        if unknown := [name for name in buckets if name not in names]:
            raise errors.UnknownName("entry of ids for buckets=", unknown[0], names)
        buckets = {name: id_hash.checked_buckets(size, f"buckets[{name!r}]") for name, size in buckets.items()}
    elif buckets is not None:
        buckets = id_hash.checked_buckets(buckets)
    made = BatchColumns(label=label, floats=entries[0], ids=entries[1], buckets=buckets, lists=dict(lists))
    for name in [*made, *lists]:
        if name not in kinds:
            raise errors.UnknownName("column", name, known)
    return made


def kind_of(arrow_type: Any) -> str:
    """Return the kind of an Arrow type. The reader treats columns of the same kind alike."""
    types = pyarrow().types
    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        return f"lists of {kind_of(arrow_type.value_type)}"
    if types.is_integer(arrow_type):
        return INTEGERS
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return DECIMALS
    if types.is_boolean(arrow_type):
        return BOOLEANS
    text = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return NULLS if types.is_null(arrow_type) else TEXTS if str(arrow_type) in text else str(arrow_type)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table, with its place for error messages."""

    table: Any
    name: str
    place: str
    lists: Mapping[str, str] = field(default_factory=dict)

    def floats(self) -> NDArray[Any] | Ragged:
        arrow, (flat, ends) = pyarrow(), self._flat()
        numbers = (DECIMALS, INTEGERS, BOOLEANS, NULLS, *((TEXTS,) if self.name in self.lists else ()))
        if kind_of(flat.type) not in numbers:
            raise self._wrong("numbers")
        values = flat.cast(arrow.float32(), safe=False).to_numpy(zero_copy_only=False)
        return _in_lists(values.astype(np.float32, copy=False), ends)

    def ids(self, buckets: int | None) -> NDArray[Any] | Ragged:
        arrow, (flat, ends) = pyarrow(), self._flat()
        kind = kind_of(flat.type)
        if kind not in (TEXTS, INTEGERS, NULLS):
            raise self._wrong("whole numbers, texts or lists of them")
        if kind == INTEGERS and buckets is None:
            whole = flat.cast(arrow.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
            self._refuse_missing(flat, whole, ends)
            return _in_lists(whole, ends)
        hashed = _hashed(flat.cast(arrow.string()) if kind == INTEGERS else flat)
        return _in_lists(hashed if buckets is None else id_hash.fold(hashed, buckets), ends)

    def _flat(self) -> tuple[Any, NDArray[np.int64] | None]:
        """Return the values of the column and, for lists, the end of each list."""
        arrow, column = pyarrow(), self.table.column(self.name).combine_chunks()
        if self.name in self.lists:
            column = arrow.compute.split_pattern(column, self.lists[self.name])
        if not kind_of(column.type).startswith("lists of "):
            return column, None
        lengths = arrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return column.flatten(), np.cumsum(lengths, dtype=np.int64)

    def _refuse_missing(self, flat: Any, whole: NDArray[np.int64], ends: NDArray[np.int64] | None) -> None:
        """Raise an error for an integer that is missing, or that is the id of the padding of lists."""
        found = "a missing value" if flat.null_count else "id 0, which pads lists" if ends is not None else ""
        if flat.null_count or (ends is not None and not whole.all()):
            raise errors.BadInput(
                f"{self.place}: integer column {self.name!r} has {found}, but every integer is an id of its own: hash "
                f"it with buckets={{{self.name!r}: ...}}, which keeps id 0 for missing values, or fill it in the file"
            )

    def _wrong(self, expected: str) -> errors.BadInput:
        kind = self.table.column(self.name).type
        return errors.BadInput(f"column {self.name!r} of {self.place} is {kind}, expected {expected}")


def _labels(table: Any, name: str, place: str, first: int) -> NDArray[np.float32]:
    """Return the labels. Raise an error if one is missing, because the row cannot be trained and 0 would be wrong."""
    values = _Column(table, name, place).floats()
    if isinstance(values, Ragged):
        raise errors.BadInput(f"column {name!r} of {place}, the label, has lists: expected numbers")
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise errors.MalformedRecord(
            f"{place}: {name!r}, the label, is missing in {len(missing)} rows, the first is row {first + missing[0]} "
            "of the data set; remove such rows from the file"
        )
    return values


def _hashed(texts: Any) -> NDArray[np.int64]:
    """Return 64-bit ids of an Arrow array of texts. The values of a dictionary are hashed once."""
    arrow = pyarrow()
    if arrow.types.is_dictionary(texts.type):
        known = np.append(_hashed(texts.dictionary), 0)
        places: NDArray[np.int64] = texts.indices.cast(arrow.int64()).fill_null(len(known) - 1).to_numpy()
        return known[places]
    texts = texts.cast(arrow.large_binary()).fill_null(b"")
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return id_hash.ids_of_texts(raw, bounds[:-1].copy(), bounds[1:].copy())


def _stacked(names: str | tuple[str, ...], read: Callable[[str], NDArray[Any] | Ragged]) -> NDArray[Any] | Ragged:
    if isinstance(names, str):
        return read(names)
    columns = []
    for name in names:
        column = read(name)
        if isinstance(column, Ragged):
            raise errors.BadInput(f"column {name!r} has lists, which no matrix can hold: give it an entry of its own")
        columns.append(column)
    return np.stack(columns, axis=1)


def _in_lists(values: NDArray[Any], ends: NDArray[np.int64] | None) -> NDArray[Any] | Ragged:
    return values if ends is None else Ragged(values, ends)


def _entries(argument: str, names: Names) -> dict[str, str | tuple[str, ...]]:
    if isinstance(names, str):
        raise errors.BadInput(f"{argument}={names!r}: expected a list of columns, as in [{names!r}]")
    if not isinstance(names, Mapping):
        return {name: name for name in names}
    return {entry: given if isinstance(given, str) else tuple(given) for entry, given in names.items()}


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _all_names(entries: Mapping[str, str | tuple[str, ...]]) -> list[str]:
    return [name for names in entries.values() for name in _listed(names)]
