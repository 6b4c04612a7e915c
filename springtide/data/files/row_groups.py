"""Finds the row groups of Parquet and CSV files, and reads one as an Arrow table.

In: paths. Out: `Group`s, which know their number of rows. A CSV file has no row groups: a group is a run of whole lines
of about 16 MiB. Next: dataset.py.
"""

import csv
import difflib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from springtide import errors
from springtide.data.files.columns import BOOLEANS, INTEGERS, NULLS, BatchColumns, kind_of, pyarrow

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
BLOCK = 1 << 24  # bytes of a group of a CSV file: some 100,000 rows, which decode in a fraction of a second


class Group(Protocol):
    """Rows that are read together."""

    @property
    def rows(self) -> int: ...

    @property
    def place(self) -> str:
        """Name of the group for error messages."""

    def read(self, columns: BatchColumns) -> Any:
        """Return the table of these columns."""


def files_of(paths: Paths, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of paths, folders and patterns such as `day-*.parquet`, sorted within each."""
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if not isinstance(path, str | os.PathLike):
            raise errors.BadInput(f"a path of a data set is {path!r}: expected text, a Path or a list of them")
        found = list(_matches(Path(path), suffixes))
        if not found:
            raise errors.MissingFile(_nothing(Path(path), suffixes))
        files += found
    if not files:
        raise errors.BadInput("the list of paths is empty: expected 1 or more files, folders or patterns")
    for file in files:
        if file.stat().st_size == 0:
            raise errors.BadInput(f"{file} is empty (0 bytes): write it again, or leave it out")
    return files


def _matches(path: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():  # names that begin with . or _ are notes of the program that wrote the folder
        yield from (file for file in sorted(path.iterdir()) if file.suffix in suffixes and file.name[0] not in "._")
    else:
        yield from (file for file in map(Path, sorted(glob.glob(str(path), recursive=True))) if file.is_file())


def _nothing(path: Path, suffixes: Sequence[str]) -> str:
    if path.is_dir():
        return f"no file in {path} ends in {' or '.join(suffixes)}"
    if glob.has_magic(str(path)):
        return f"no file matches {path}"
    if not path.parent.is_dir():
        return f"no file {path}: its folder {path.parent} does not exist"
    names = sorted(file.name for file in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"no file {path}." + (f" Did you mean {str(path.parent / near[0])!r}?" if near else "")


@dataclass(frozen=True, slots=True)
class ParquetGroup:
    """A row group of a Parquet file."""

    path: Path
    number: int
    rows: int

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self, columns: BatchColumns) -> Any:
        arrow = pyarrow()
        try:  # without threads, because reader processes are forked, and a worker has its share of the CPU
            with arrow.parquet.ParquetFile(self.path) as file:
                return file.read_row_group(self.number, columns=list(columns), use_threads=False)
        except (arrow.ArrowException, OSError) as error:
            raise errors.MalformedRecord(
                f"{self.path}: row group {self.number} cannot be read ({_line(error)}); fetch the file again"
            ) from error


Kinds = dict[str, str]


def parquet_kinds(path: Path) -> Kinds:
    """Return the kind of each column."""
    return {name.name: kind_of(name.type) for name in _metadata(path)[0]}


def parquet_groups(path: Path) -> Iterable[ParquetGroup]:
    found = _metadata(path)[1]
    return [ParquetGroup(path, number, found.row_group(number).num_rows) for number in range(found.num_row_groups)]


def _metadata(path: Path) -> tuple[Any, Any]:
    arrow = pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            return file.schema_arrow, file.metadata
    except arrow.ArrowException as error:
        raise errors.MalformedRecord(f"{path} is not a whole Parquet file ({_line(error)}); fetch it again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Format of the text files of a data set."""

    separator: str
    names: tuple[str, ...] | None
    """Names of the columns, if the files have no header."""
    missing: tuple[str, ...]
    """Cells that stand for a missing value."""

    def header(self, path: Path) -> tuple[tuple[str, ...], int]:
        """Return the names of the columns, and the position of the first record."""
        with path.open("rb") as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                raise errors.BadInput(f"{path} is packed with gzip, and cannot be read in parts: unpack it")
            if self.names is not None:
                return self.names, 0
            line = file.readline()
        text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
        return tuple(next(csv.reader([text], delimiter=self.separator))), len(line)

    def table(self, raw: bytes, names: Sequence[str], types: dict[str, Any] | None, wanted: Sequence[str]) -> Any:
        arrow = pyarrow()
        return arrow.csv.read_csv(
            arrow.BufferReader(raw),
            # read one block, because all rows of one block have the same inferred types
            arrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(raw), 1)),
            arrow.csv.ParseOptions(delimiter=self.separator, ignore_empty_lines=False),
            arrow.csv.ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=self.missing,
                strings_can_be_null=True,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvGroup:
    """A run of whole lines of a text file."""

    path: Path
    names: tuple[str, ...]
    first: int
    last: int
    rows: int
    format: CsvFormat
    kinds: Kinds

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self, columns: BatchColumns) -> Any:
        arrow = pyarrow()
        with self.path.open("rb") as file:
            file.seek(self.first)
            raw = file.read(self.last - self.first)
        types = {name: self._type(arrow, name, columns) for name in columns}
        where = f"{self.path}, bytes {self.first} to {self.last}"
        try:
            table = self.format.table(raw, self.names, types, list(columns))
        except arrow.ArrowInvalid as error:
            raise errors.MalformedRecord(
                f"{where}: {_line(error)}; repair the file. A column of ids is read as text with buckets="
            ) from error
        if len(table) != self.rows:
            raise errors.MalformedRecord(
                f"{where}: {len(table)} records in {self.rows} lines; expected one a line, without line ends in quotes"
            )
        return table

    def _type(self, arrow: Any, name: str, columns: BatchColumns) -> Any:
        kind = self.kinds[name]
        if name in columns.lists:
            return arrow.string()
        if not columns.is_id(name):
            return arrow.bool_() if kind == BOOLEANS else arrow.float32()
        return arrow.int64() if kind == INTEGERS and columns.buckets_of(name) is None else arrow.string()


def csv_kinds(path: Path, written: CsvFormat) -> Kinds:
    """Return the kinds of the columns, inferred from the first group of the file."""
    arrow = pyarrow()
    names, begin = written.header(path)
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise errors.BadInput(f"{path}: two columns are named {doubled[0]!r}; rename one")
    with path.open("rb") as file:
        file.seek(begin)
        raw = file.read(1 << 20)
        raw += file.readline()
    if not raw.strip():
        return dict.fromkeys(names, NULLS)
    try:
        return {name.name: kind_of(name.type) for name in written.table(raw, names, None, names).schema}
    except arrow.ArrowInvalid as error:
        raise errors.MalformedRecord(f"{path}: {_line(error)}; is {written.separator!r} its separator?") from error


def csv_groups(path: Path, written: CsvFormat, kinds: Kinds) -> Iterator[CsvGroup]:
    """Yield the groups of a file. The function reads the whole file once, to count its lines."""
    names, begin = written.header(path)
    text = np.memmap(path, dtype=np.uint8, mode="r")
    end = len(text)
    while end > begin and text[end - 1] in b"\r\n":
        end -= 1
    while begin < end:
        stop = min(begin + BLOCK, end)
        while stop < end and text[stop - 1] != ord("\n"):
            ahead = np.flatnonzero(text[stop : stop + 4096] == ord("\n"))
            stop = min(stop + (int(ahead[0]) + 1 if len(ahead) else 4096), end)
        rows = int(np.count_nonzero(text[begin:stop] == ord("\n"))) + (stop == end)
        yield CsvGroup(path=path, names=names, first=begin, last=stop, rows=rows, format=written, kinds=kinds)
        begin = stop


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """All rows of a frame in memory, as an Arrow table."""

    table: Any
    place: str = "the frame"

    @property
    def rows(self) -> int:
        return len(self.table)

    def read(self, columns: BatchColumns) -> Any:
        return self.table.select(list(columns))


def same_kinds(files: Sequence[Path], kinds: Callable[[Path], Kinds], columns: BatchColumns, first: Kinds) -> None:
    """Raise an error unless each file has the columns that are read, of the same kinds as in the first file."""
    for file in files[1:]:
        found = kinds(file)
        for name in columns:
            if name not in found:
                raise errors.BadInput(f"{file} has no column {name!r}, but {files[0]} has: expected files of one form")
            if found[name] != first[name] and NULLS not in (found[name], first[name]):
                raise errors.BadInput(
                    f"column {name!r} has {found[name]} in {file}, but {first[name]} in {files[0]}: expected one kind. "
                    "Write the files again with one schema"
                )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
