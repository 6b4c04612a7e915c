"""Export folders on disk or at a URL, such as `export-000007`, and how to read exports into PyTorch models.

In: tables from `exporter`. Out: files of keys and rows (`table_files`), a state dict for `torch.load`, and a JSON card
that lists the files with checksums. The card is written last, so a folder without a card is not an export.
"""

import io
import pathlib
import re
import shutil
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from springtide.domain.core.validation import UNDECODABLE, FileVersion
from springtide.domain.model.tables import DType, TableOutline
from springtide.export.table_files import ExportedModel, ExportedTable, Format, TableDelta, apply, in_order, unpack
from springtide.export.untrained_rows import UntrainedRows

VERSION = 2
"""Version of the export format. Version 1 stored sorted keys in a file, and had no index."""
READ = (1, 2)
CARD = "export.json"
DENSE = "dense.pt"
FILLED_ROWS = 1 << 16
"""Number of untrained rows that a model fills at once."""


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """One table of an export."""

    outline: TableOutline
    dtype: DType
    dim: int
    file: str
    keys: int
    """Number of rows in the table's file."""
    removed: int = 0
    """Number of keys in the file that were removed since the base export."""
    crc: int
    bytes: int = 0
    """Size of the table's file; 0 in exports of an earlier version."""
    untrained: UntrainedRows | None = None
    """Initial values of rows that the file lacks; None in exports of an earlier version."""


class ExportCard(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an export."""

    version: int = VERSION
    job: str
    number: int
    """Number of the checkpoint."""
    since: int | None = None
    """Number of the base export of a delta; None for a full export."""
    samples: int
    """Number of samples trained up to this export."""
    step: int = 0
    """Step of a bsp group; the whole export has the state after this step."""
    made_at: float
    format: Format
    tables: tuple[TableFile, ...]
    dense_crc: int
    left_out: tuple[str, ...] = ()
    slots: int = 0
    index_crc: int | None = None
    """Checksum of `index.bin`; None without an index, so that no delta can build on this export."""

    @property
    def rows(self) -> int:
        return sum(table.keys for table in self.tables)


def folder_name(number: int) -> str:
    return f"export-{number:06d}"


def place_for(url: str, number: int) -> FolderStore | UrlStore:
    where = f"{url.rstrip('/')}/{folder_name(number)}"
    return UrlStore(where) if "://" in where else FolderStore(pathlib.Path(where).expanduser())


def numbers(url: str) -> list[int]:
    return sorted((number for number in _begun(url) if place_for(url, number).size(CARD)), reverse=True)


def halves(url: str) -> list[int]:
    """Return the numbers of incomplete exports. An incomplete export has no card, because its process was killed."""
    return [number for number in _begun(url) if not place_for(url, number).size(CARD)]


def _begun(url: str) -> list[int]:
    found = [re.fullmatch(r"export-(\d{6,})", folder) for folder in UrlStore(url).folders()]
    return [int(match[1]) for match in found if match]


class ChecksummedFile:
    """A file to write, with the checksum and length of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = self.size = 0
        self.closed = False

    def write(self, content: bytes) -> int:
        self._file.write(content)
        self.crc, self.size = zlib.crc32(content, self.crc), self.size + len(content)
        return len(content)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: the file interface requires this method, and this class buffers nothing."""

    def close(self) -> None:
        self.closed = True


def write_dense(place: FolderStore | UrlStore, dense: dict[str, Any]) -> int:
    packed = io.BytesIO()
    torch.save(dense, packed)
    place.write(DENSE, packed.getvalue())
    return zlib.crc32(packed.getvalue())


def publish(place: FolderStore | UrlStore, card: ExportCard) -> None:
    place.write(CARD, msgspec.json.format(msgspec.json.encode(card)))


def is_whole(url: str, card: ExportCard) -> bool:
    """Return True if the files have the sizes on the card. Checksums are compared only on reading."""
    place = place_for(url, card.number)
    return all(table.bytes and place.size(table.file) == table.bytes for table in card.tables)


def remove(url: str, number: int) -> None:
    """Delete an export. Delete the card of the export first, so that no reader sees an incomplete export."""
    place = place_for(url, number)
    place.remove(CARD)
    if isinstance(place, FolderStore):
        shutil.rmtree(place.path)
        return
    for name in place.names():
        place.remove(name)


def read_card(url: str, number: int) -> ExportCard:
    place = place_for(url, number)
    try:
        content = place.read(CARD)
        found = msgspec.json.decode(content, type=FileVersion).version
        if found not in (None, *READ):
            raise errors.OtherVersion(f"{place.where}/{CARD}", found, f"{READ[0]} to {VERSION}")
        return msgspec.json.decode(content, type=ExportCard)
    except FileNotFoundError:
        known = ", ".join(map(str, numbers(url))) or "none"
        raise errors.MissingFile(f"no export {number} at {url}; exports there: {known}") from None
    except UNDECODABLE as error:
        raise errors.BadInput(f"{place.where}/{CARD} cannot be read: {error}") from None


def read_table(url: str, card: ExportCard, table: TableFile) -> TableDelta:
    content = _checked(url, card, table.file, table.crc)
    keys, rows, removed = unpack(card.format, content, table.dim)
    found = in_order(table.outline, table.dtype, keys, rows, untrained=table.untrained)
    return TableDelta(found, np.sort(removed))


def read_dense(url: str, card: ExportCard) -> dict[str, Any]:
    content = _checked(url, card, DENSE, card.dense_crc)
    dense: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return dense


def _checked(url: str, card: ExportCard, file: str, crc: int) -> bytes:
    place = place_for(url, card.number)
    content = place.read(file)
    if zlib.crc32(content) != crc:
        raise errors.BadInput(f"{place.where}/{file} is torn or was changed: its checksum differs from the card's")
    return content


def read(url: str, number: int | None = None) -> ExportedModel:
    """Read the export of that number, or the newest export."""
    if number is None:
        known = numbers(url)
        if not known:
            raise errors.MissingFile(f"no exports at {url}; `springtide export JOB {url}` makes one")
        number = known[0]
    card = read_card(url, number)
    base = read(url, card.since) if card.since is not None else None
    tables = {}
    for table in card.tables:
        part = read_table(url, card, table)
        older = base.tables.get(table.outline.name) if base else None
        tables[table.outline.name] = apply(older, part) if older else part.changed
    return ExportedModel(
        job=card.job,
        number=card.number,
        samples=card.samples,
        tables=tables,
        dense=read_dense(url, card),
        left_out=card.left_out,
    )


def into(model: nn.Module, url: str, number: int | None = None) -> ExportedModel:
    """Fill a plain model from an export. On an error, change nothing.

    Rows that were never trained get the values that they have in the job. Buffers that the export lacks keep theirs.
    """
    found = read(url, number)
    weights = _weights(model, found)
    check_dense(model, found.dense)
    with torch.no_grad():
        for weight, table in weights:
            _fill(weight, table)
    model.load_state_dict(found.dense, strict=False)
    return found


def check_dense(model: nn.Module, dense: Mapping[str, torch.Tensor]) -> None:
    """Raise BadInput unless the model has all of these tensors, with the same shapes."""
    own = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    unknown = sorted(set(dense) - set(own))
    if unknown:
        raise errors.BadInput(f"the export has dense tensors that the model lacks: {', '.join(unknown)}")
    for name, tensor in dense.items():
        if own[name].shape != tensor.shape:
            raise errors.BadInput(
                f"{name!r} is {tuple(tensor.shape)} in the export and {tuple(own[name].shape)} in the model"
            )


def _fill(weight: torch.Tensor, table: ExportedTable) -> None:
    for first in range(0, len(weight), FILLED_ROWS) if table.untrained is not None else ():
        ids = np.arange(first, min(first + FILLED_ROWS, len(weight)))
        weight[first : first + len(ids)] = torch.from_numpy(table.untrained_rows(ids)).to(weight.dtype)
    weight[torch.from_numpy(table.keys)] = torch.from_numpy(table.rows).to(weight.dtype)


def _weights(model: nn.Module, found: ExportedModel) -> list[tuple[torch.Tensor, ExportedTable]]:
    weights = []
    for name, table in found.tables.items():
        for path in table.outline.paths:
            try:
                weight = getattr(model.get_submodule(path), "weight", None)
            except AttributeError:
                weight = None
            if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
                raise errors.BadInput(f"the model has no table at {path!r}; the export has table {name!r} there")
            largest, dim = int(table.keys[-1]) if len(table.keys) else 0, table.rows.shape[1]
            if dim != weight.shape[1] or largest >= max(1, weight.shape[0]):
                raise errors.BadInput(
                    f"table {name!r} has dim {dim} and ids up to {largest}; the model's {path!r} is "
                    f"{tuple(weight.shape)}"
                )
            weights.append((weight, table))
    return weights
