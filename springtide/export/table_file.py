"""Writes a table to a file in blocks, and reads it back.

In: a `TableSpool` and a file. Out: standard safetensors or Parquet, with one block of rows in memory. Reading loads a
whole table, to put it into a model.
"""

import importlib
import io
import json
from typing import Any, BinaryIO, Literal, get_args

from springtide import errors
from springtide.export.model import Keys, Rows
from springtide.export.row_spool import TableSpool

Format = Literal["safetensors", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise errors.UnknownName("format", name, FORMATS)
    return "parquet" if name == "parquet" else "safetensors"


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
    for blocks in (table.keys_in_blocks(), table.removed_in_blocks(), table.rows_in_blocks()):
        for block in blocks:
            out.write(block.tobytes())


def _pack_parquet(table: TableSpool, out: BinaryIO) -> None:
    arrow, parquet = _extra("pyarrow"), _extra("pyarrow.parquet")
    row = arrow.list_(arrow.float32(), table.dim)
    schema = arrow.schema([("key", arrow.int64()), ("row", row)])
    with parquet.ParquetWriter(out, schema) as writer:
        for keys, rows in zip(table.keys_in_blocks(), table.rows_in_blocks(), strict=True):
            values = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), table.dim)
            writer.write_table(arrow.table([arrow.array(keys), values], schema=schema))
        for keys in table.removed_in_blocks():
            writer.write_table(arrow.table([arrow.array(keys), arrow.nulls(len(keys), row)], schema=schema))


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise errors.MissingExtra(f"an export as {module.partition('.')[0]}", "export") from None
