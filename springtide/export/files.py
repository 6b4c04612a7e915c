"""Exports on disk or at a URL: one folder each, `export-000007`, whose card is written last.

In: models and deltas. Out: files of keys and rows (safetensors or Parquet), a state dict for `torch.load`, and a JSON
card that lists them with their checksums; and back. An export without a card is none.
"""

import io
import re
import time
import zlib
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import torch

from springtide import errors
from springtide.checkpoint.places import Folder, Place, Remote, place_of
from springtide.domain.outline import TableOutline
from springtide.export.delta import TableDelta
from springtide.export.model import Keys, Model, Rows, Table

Format = Literal["safetensors", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
VERSION = 1
CARD = "export.json"
DENSE = "dense.pt"


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """One table of an export."""

    outline: TableOutline
    dtype: str
    dim: int
    file: str
    keys: int
    """Rows in the file."""
    removed: int = 0
    """Keys in it that went since."""
    crc: int


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What an export holds."""

    version: int = VERSION
    job: str
    number: int
    """Of the checkpoint it was made of."""
    since: int | None = None
    """A delta: only what changed since the export of that number."""
    samples: int
    made_at: float
    format: Format
    tables: tuple[TableFile, ...]
    dense_crc: int
    left_out: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """In all tables."""
        return sum(table.keys for table in self.tables)


def format_named(name: str) -> Format:
    """One of the formats, or UnknownName."""
    if name not in FORMATS:
        raise errors.UnknownName("format", name, FORMATS)
    return "parquet" if name == "parquet" else "safetensors"


def folder_name(number: int) -> str:
    """The folder of an export."""
    return f"export-{number:06d}"


def place_for(url: str, number: int) -> Place:
    """Where one export lies."""
    return place_of(f"{url.rstrip('/')}/{folder_name(number)}")


def numbers(url: str) -> list[int]:
    """Exports at a URL that are whole, newest first."""
    found = [re.fullmatch(r"export-(\d{6,})", folder) for folder in Remote(url).folders()]
    known = (int(match[1]) for match in found if match)
    return sorted((number for number in known if place_for(url, number).size(CARD)), reverse=True)


def write(url: str, model: Model, *, format: Format, deltas: dict[str, TableDelta] | None, since: int | None) -> Card:
    """A whole model, or with `deltas` what changed since export `since`. The dense part is always whole."""
    place = place_for(url, model.number)
    place.remove(CARD)  # an export made again is none until it is whole
    files = []
    for i, (name, table) in enumerate(model.tables.items()):
        part = table if deltas is None else deltas[name].changed
        removed = np.empty(0, dtype=np.int64) if deltas is None else deltas[name].removed
        file = f"table-{i}.{format}"
        content = _packed(format, part.keys, part.rows, removed)
        place.write(file, content)
        files.append(
            TableFile(
                outline=table.outline, dtype=table.dtype, dim=table.rows.shape[1], file=file, keys=len(part.keys),
                removed=len(removed), crc=zlib.crc32(content),
            )
        )  # fmt: skip
    dense = io.BytesIO()
    torch.save(model.dense, dense)
    place.write(DENSE, dense.getvalue())
    card = Card(
        job=model.job, number=model.number, since=since, samples=model.samples, made_at=time.time(), format=format,
        tables=tuple(files), dense_crc=zlib.crc32(dense.getvalue()), left_out=model.left_out,
    )  # fmt: skip
    place.write(CARD, msgspec.json.format(msgspec.json.encode(card)))
    return card


def remove(url: str, number: int) -> None:
    """Take an export away, its card first: half an export is none."""
    place = place_for(url, number)
    place.remove(CARD)
    for name in place.names():
        place.remove(name)
    if isinstance(place, Folder):
        place.path.rmdir()


def read_card(url: str, number: int) -> Card:
    """The card of an export."""
    place = place_for(url, number)
    try:
        card = msgspec.json.decode(place.read(CARD), type=Card)
    except FileNotFoundError:
        known = ", ".join(map(str, numbers(url))) or "none"
        raise errors.MissingFile(f"no export {number} at {url}; exports there: {known}") from None
    except msgspec.DecodeError as error:
        raise errors.BadInput(f"{place.where}/{CARD} cannot be read: {error}") from None
    if card.version != VERSION:
        raise errors.BadInput(f"{place.where}: format {card.version}; this Springtide reads {VERSION}")
    return card


def read_table(url: str, card: Card, table: TableFile) -> TableDelta:
    """One table's rows; in a full export nothing is removed."""
    content = _checked(url, card, table.file, table.crc)
    keys, rows, removed = _unpacked(card.format, content, table.dim)
    return TableDelta(Table(table.outline, table.dtype, keys, rows), removed)


def read_dense(url: str, card: Card) -> dict[str, Any]:
    """The dense tensors."""
    content = _checked(url, card, DENSE, card.dense_crc)
    dense: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return dense


def _checked(url: str, card: Card, file: str, crc: int) -> bytes:
    place = place_for(url, card.number)
    content = place.read(file)
    if zlib.crc32(content) != crc:
        raise errors.BadInput(f"{place.where}/{file} is torn or was changed: its checksum is not the card's")
    return content


def _packed(format: Format, keys: Keys, rows: Rows, removed: Keys) -> bytes:
    if format == "safetensors":
        numpy = _extra("safetensors.numpy")
        packed: bytes = numpy.save({"keys": keys, "rows": np.ascontiguousarray(rows), "removed": removed})
        return packed
    arrow, parquet = _extra("pyarrow"), _extra("pyarrow.parquet")
    values = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), rows.shape[1])
    nothing = arrow.nulls(len(removed), values.type)
    columns = {"key": np.concatenate([keys, removed]), "row": arrow.concat_arrays([values, nothing])}
    out = io.BytesIO()
    parquet.write_table(arrow.table(columns), out)
    return out.getvalue()


def _unpacked(format: Format, content: bytes, dim: int) -> tuple[Keys, Rows, Keys]:
    if format == "safetensors":
        found = _extra("safetensors.numpy").load(content)
        return found["keys"], found["rows"], found["removed"]
    table = _extra("pyarrow.parquet").read_table(io.BytesIO(content))
    keys = table.column("key").to_numpy()
    gone = table.column("row").combine_chunks().is_null().to_numpy(zero_copy_only=False)
    kept = table.column("row").combine_chunks().drop_null()
    rows = kept.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return keys[~gone], rows, keys[gone]


def _extra(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise errors.MissingExtra(f"an export as {module.partition('.')[0]}", "export") from None
