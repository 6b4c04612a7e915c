"""Buffers rows on the local disk until their number is known, which file headers need.

In: keys and rows of tables, in any order of tables. Out: the same rows in blocks. Memory use is bounded for any size of
table. The disk needs room for one export. Next: `export.table_file` writes the files.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.export.model import Keys, Rows

HELD_BYTES = 64 << 20
"""Bytes of all tables in memory before they go to disk."""
BLOCK_ROWS = 1 << 16


class Spool:
    """Named columns of arrays in a folder that its owner deletes."""

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
            # opened each time: there may be too many tables to keep files open
            with open(self._folder / column, "ab") as file:
                for part in parts:
                    file.write(part.data)
        self._held, self._bytes = {}, 0


class TableSpool:
    """One table in a spool: rows, and removed keys."""

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

    def keys_in_blocks(self) -> Iterator[Keys]:
        return self._spool.blocks(f"{self._name}.keys", np.int64)

    def rows_in_blocks(self) -> Iterator[Rows]:
        return self._spool.blocks(f"{self._name}.rows", np.float32, self.dim)

    def removed_in_blocks(self) -> Iterator[Keys]:
        return self._spool.blocks(f"{self._name}.removed", np.int64)

    def drop(self) -> None:
        for column in ("keys", "rows", "removed"):
            self._spool.drop(f"{self._name}.{column}")
