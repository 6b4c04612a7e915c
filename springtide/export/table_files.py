"""Files with the rows of exported tables: index, delta, spool on the local disk, and files in common formats.

In: sorted keys and rows, slot by slot. Out: safetensors or Parquet files, and `index.bin`, from which the next export
finds changed rows without reading the old rows. File headers contain the number of rows, so rows wait in a spool until
their number is known. Memory use is bounded for any size of table. Next: `exporter`.
"""

import contextlib
import importlib
import io
import json
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.checkpoint.format.storage import FileStore, FolderStore, UrlStore
from springtide.domain.core.splitmix import GOLDEN, mix64
from springtide.domain.model.tables import DType, TableOutline
from springtide.export.untrained_rows import UntrainedRows

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ExportedTable:
    """The rows of one table, sorted by key. A missing key was never trained."""

    outline: TableOutline
    dtype: DType
    """Data type on the servers. `rows` are float32 in any case."""
    keys: Keys
    rows: Rows
    untrained: UntrainedRows | None = None
    """Initial values of missing keys' rows; None if an earlier version made the export."""

    def look_up(self, ids: npt.ArrayLike) -> Rows:
        """Return a row for each id, as the job would return it: trained rows, and initial values for untrained ids."""
        wanted = np.asarray(ids, dtype=np.int64).reshape(-1)
        at = _positions(self.keys, wanted)
        trained = at >= 0
        found = np.empty((len(wanted), self.rows.shape[1]), dtype=np.float32)
        found[trained] = self.rows[at[trained]]
        if not trained.all():
            found[~trained] = self.untrained_rows(wanted[~trained])
        return found

    def untrained_rows(self, ids: Keys) -> Rows:
        if self.untrained is None:
            raise errors.BadInput(
                f"table {self.outline.name!r}: the export does not say how untrained rows start, because an earlier "
                "version of Springtide made it. Export the checkpoint again"
            )
        return self.untrained.rows(ids, dim=self.rows.shape[1], dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """All tables and dense tensors of an export."""

    job: str
    number: int
    """Number of the checkpoint."""
    samples: int
    """Number of samples trained up to this export."""
    tables: dict[str, ExportedTable] = field(default_factory=dict)
    dense: dict[str, Any] = field(default_factory=dict)
    """Torch tensors by their name in the model's state_dict()."""
    left_out: tuple[str, ...] = ()
    """Names in the model's state dict for which no server has trained values."""


def in_order(
    outline: TableOutline, dtype: DType, keys: Keys, rows: Rows, *, untrained: UntrainedRows | None = None
) -> ExportedTable:
    order = np.argsort(keys, kind="stable")
    return ExportedTable(
        outline, dtype, np.ascontiguousarray(keys[order]), np.ascontiguousarray(rows[order]), untrained
    )


NAME = "index.bin"
BLOCK_BYTES = 8 << 20
HASHED_ROWS = 1 << 14

Sums = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.uint32]


class UnusableBase(errors.BadInput):
    """Error for an index that does not match its card. No delta can build on such an index."""


def sums_of(rows: Rows) -> Sums:
    """Return a 64-bit hash of each row's bits."""
    mixed = np.empty(len(rows), dtype=np.uint64)
    place = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(GOLDEN)
    for first in range(0, len(rows), HASHED_ROWS):
        part = np.ascontiguousarray(rows[first : first + HASHED_ROWS])
        # mix in the column number, because otherwise swapped columns would give the same hash
        x = mix64(part.view(np.uint32).astype(np.uint64) + place)
        mixed[first : first + HASHED_ROWS] = x.sum(axis=1, dtype=np.uint64)
    return mixed


class IndexReader:
    """Reads an index. The index has keys and row hashes by slot, and within a slot by table; then the number of keys
    of each part.

    Raises if the index is truncated, or at the end if its checksum is wrong.
    """

    def __init__(self, place: FileStore, *, parts: int, crc: int) -> None:
        self._place, self._crc, self._seen = place, crc, 0
        size = place.size(NAME)
        if size is None or size < 4 * parts:
            raise UnusableBase(f"{place.where}/{NAME} is {'missing' if size is None else 'torn'}")
        tail = place.read(NAME, size - 4 * parts)
        self._counts: Counts = np.frombuffer(tail, dtype=np.uint32)
        self._end = size - 4 * parts
        if len(tail) != 4 * parts or 16 * int(self._counts.sum(dtype=np.int64)) != self._end:
            raise UnusableBase(f"{place.where}/{NAME} is torn")
        self._tail = tail
        self._at = self._part = 0
        self._ahead, self._used = b"", 0

    def next(self) -> tuple[Keys, Sums]:
        count = int(self._counts[self._part])
        self._part += 1
        return (
            np.frombuffer(self._take(8 * count), dtype=np.int64),
            np.frombuffer(self._take(8 * count), dtype=np.uint64),
        )

    def close(self) -> None:
        """Check the checksum after the last part."""
        if zlib.crc32(self._tail, self._seen) != self._crc:
            raise UnusableBase(f"{self._place.where}/{NAME} was changed: its checksum differs from the card's")

    def _take(self, size: int) -> bytes:
        while len(self._ahead) - self._used < size:
            block = self._place.read(NAME, self._at, min(max(BLOCK_BYTES, size), self._end - self._at))
            if not block:
                raise UnusableBase(f"{self._place.where}/{NAME} is torn")
            self._seen = zlib.crc32(block, self._seen)
            self._at += len(block)
            self._ahead, self._used = self._ahead[self._used :] + block, 0
        self._used += size
        return self._ahead[self._used - size : self._used]


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """Change of a table: apply `changed` to the older table, then delete `removed`."""

    changed: ExportedTable
    removed: Keys


def between(old: Keys, old_sums: Sums, new: Keys, new_sums: Sums) -> tuple[npt.NDArray[np.bool_], Keys]:
    """Return a mask of rows that are new or changed, and the removed keys. Keys are sorted on both sides."""
    at = _positions(old, new)
    known = at >= 0
    differs = np.ones(len(new), dtype=bool)
    differs[known] = old_sums[at[known]] != new_sums[known]
    return differs, old[_positions(new, old) < 0]


def apply(old: ExportedTable, delta: TableDelta) -> ExportedTable:
    stays = (_positions(delta.changed.keys, old.keys) < 0) & (_positions(delta.removed, old.keys) < 0)
    keys = np.concatenate([old.keys[stays], delta.changed.keys])
    rows = np.concatenate([old.rows[stays], delta.changed.rows])
    order = np.argsort(keys, kind="stable")
    return replace(delta.changed, keys=keys[order], rows=rows[order])


def _positions(among: Keys, keys: Keys) -> Keys:
    if len(among) == 0:
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    return np.where(among[at] == keys, at, -1)


HELD_BYTES = 64 << 20
"""Bytes of all tables that may be in memory before they go to disk."""
BLOCK_ROWS = 1 << 16


class Spool:
    """Named columns of arrays, stored in a folder that its owner deletes."""

    def __init__(self, folder: pathlib.Path, *, held_bytes: int = HELD_BYTES) -> None:
        self._folder, self._limit = folder, held_bytes
        self._held: dict[str, list[npt.NDArray[Any]]] = {}
        self._bytes = 0
        self._counts: dict[str, int] = {}

    def add(self, column: str, values: npt.NDArray[Any]) -> None:
        if len(values):
            self._held.setdefault(column, []).append(np.ascontiguousarray(values))
            self._counts[column] = self.count(column) + len(values)
            self._bytes += values.nbytes
        if self._bytes > self._limit:
            self._flush()

    def count(self, column: str) -> int:
        return self._counts.get(column, 0)

    def blocks(self, column: str, dtype: npt.DTypeLike, width: int = 1) -> Iterator[npt.NDArray[Any]]:
        """Yield a column in blocks, in insertion order."""
        self._flush()
        if not self.count(column):
            return
        with open(self._folder / column, "rb") as file:
            while len(block := np.fromfile(file, dtype=dtype, count=BLOCK_ROWS * width)):
                yield block if width == 1 else block.reshape(-1, width)

    def drop(self, column: str) -> None:
        (self._folder / column).unlink(missing_ok=True)

    def _flush(self) -> None:
        for column, parts in self._held.items():
            # open the file for each write, because there may be more tables than a process may have open files
            with open(self._folder / column, "ab") as file:
                for part in parts:
                    file.write(part.data)
        self._held, self._bytes = {}, 0


class TableSpool:
    """One table in a spool: its rows and its removed keys."""

    def __init__(self, spool: Spool, name: str, dim: int) -> None:
        self._spool, self._name, self.dim = spool, name, dim

    def add(self, keys: Keys, rows: Rows, removed: Keys) -> None:
        self._spool.add(f"{self._name}.keys", keys)
        self._spool.add(f"{self._name}.rows", rows)
        self._spool.add(f"{self._name}.removed", removed)

    @property
    def rows(self) -> int:
        return self._spool.count(f"{self._name}.keys")

    @property
    def removed(self) -> int:
        return self._spool.count(f"{self._name}.removed")

    def blocks(self, column: str) -> Iterator[npt.NDArray[Any]]:
        dtype, width = (np.float32, self.dim) if column == "rows" else (np.int64, 1)
        return self._spool.blocks(f"{self._name}.{column}", dtype, width)

    def drop(self) -> None:
        for column in ("keys", "rows", "removed"):
            self._spool.drop(f"{self._name}.{column}")


@contextlib.contextmanager
def spool_folder(there: FolderStore | UrlStore) -> Iterator[pathlib.Path]:
    """Yield an empty folder for a spool. For a local export, the folder is inside the export, so that both are removed
    together. For an export to a URL, the folder is a temporary folder.
    """
    if isinstance(there, UrlStore):
        with tempfile.TemporaryDirectory(prefix="springtide-export-") as folder:
            yield pathlib.Path(folder)
        return
    made = there.path / "spool"
    try:
        shutil.rmtree(made, ignore_errors=True)  # an export that was killed left this folder
        made.mkdir(parents=True)
    except OSError as error:
        raise errors.BadInput(f"cannot export to {there.where}: {error.strerror}") from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


Format = Literal["safetensors", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)


def check(format: Format) -> None:
    """Fail early if the format's package is missing."""
    _extra("safetensors.numpy" if format == "safetensors" else "pyarrow.parquet")


def pack(format: Format, table: TableSpool, out: BinaryIO) -> None:
    (_pack_safetensors if format == "safetensors" else _pack_parquet)(table, out)


def unpack(format: Format, content: bytes, dim: int) -> tuple[Keys, Rows, Keys]:
    if format == "safetensors":
        found = _extra("safetensors.numpy").load(content)
        return found["keys"], found["rows"], found["removed"]
    table = _extra("pyarrow.parquet").read_table(io.BytesIO(content))
    keys = table.column("key").to_numpy()
    gone = table.column("row").combine_chunks().is_null().to_numpy(zero_copy_only=False)
    kept = table.column("row").combine_chunks().drop_null()
    rows = kept.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return keys[~gone], rows, keys[gone]


def _pack_safetensors(table: TableSpool, out: BinaryIO) -> None:
    shapes: dict[str, tuple[str, list[int], int]] = {
        "keys": ("I64", [table.rows], 8 * table.rows),
        "removed": ("I64", [table.removed], 8 * table.removed),
        "rows": ("F32", [table.rows, table.dim], 4 * table.dim * table.rows),
    }
    head, at = {}, 0
    for name, (dtype, shape, size) in shapes.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for name in shapes:
        for block in table.blocks(name):
            out.write(block.tobytes())


def _pack_parquet(table: TableSpool, out: BinaryIO) -> None:
    arrow, parquet = _extra("pyarrow"), _extra("pyarrow.parquet")
    row = arrow.list_(arrow.float32(), table.dim)
    schema = arrow.schema([("key", arrow.int64()), ("row", row)])
    with parquet.ParquetWriter(out, schema) as writer:
        for keys, rows in zip(table.blocks("keys"), table.blocks("rows"), strict=True):
            values = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), table.dim)
            writer.write_table(arrow.table([arrow.array(keys), values], schema=schema))
        for keys in table.blocks("removed"):
            writer.write_table(arrow.table([arrow.array(keys), arrow.nulls(len(keys), row)], schema=schema))


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise errors.MissingExtra(f"an export as {module.partition('.')[0]}", "export") from None
