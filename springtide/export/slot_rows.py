"""Reads rows from a checkpoint slot by slot, with at most one slot in memory.

In: a place with checkpoints, and a manifest (`checkpoint.format.reader`). Out: keys and rows of every table in one
slot, and the dense tensors, whose chunks are rows of reserved tables. Next: `export.exporter`.
"""

import msgspec
import numpy as np
import torch

from springtide import _native, errors
from springtide.checkpoint.format import group_model, reader
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore
from springtide.domain.model.tables import DenseOutline, Outline, TableSpec
from springtide.embedding.lookup.specs import native_spec
from springtide.export.model import Keys, Rows

Found = dict[int, tuple[Keys, Rows]]
"""Sorted keys and rows, by table."""
NOWHERE = -1
"""Index of a table that the checkpoint lacks."""


def outline_of(place: FileStore, manifest: Manifest) -> Outline:
    if not manifest.outline:
        raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} does not say what model it is of")
    return msgspec.msgpack.decode(manifest.outline, type=Outline)


def specs_of(place: FileStore, manifest: Manifest, outline: Outline) -> list[TableSpec]:
    known = {spec.name: spec for spec in manifest.tables}
    for part in outline.tables:
        if part.name not in known:
            raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} lacks the table {part.name!r}")
    return [known[part.name] for part in outline.tables]


class SlotRows:
    """Reader of slots through a store that holds one slot at a time."""

    def __init__(self, place: FileStore, manifest: Manifest) -> None:
        self._place, self._manifest = place, manifest
        self._store = _native.Store(slots=manifest.slots, seed=manifest.seed)
        for spec in manifest.tables:
            self._store.declare(native_spec(spec))

    def read(self, slot: int) -> Found:
        for image in reader.images(self._place, self._manifest, slot):
            self._store.import_slot(image)
        found = {spec.id: self._scan(spec, slot) for spec in self._manifest.tables}
        self._store.clear_slot(slot)
        return found

    def _scan(self, spec: TableSpec, slot: int) -> tuple[Keys, Rows]:
        keys, rows = self._store.scan(spec.id, slot)
        order = np.argsort(keys, kind="stable")
        return keys[order], rows.reshape(-1, spec.dim)[order]


class DenseParts:
    """Dense tensors assembled from chunks found in slots; those of a bsp group come from its single table."""

    def __init__(self, outline: Outline, manifest: Manifest) -> None:
        self._outline = outline
        self._group = {spec.name: spec.id for spec in manifest.tables}.get(group_model.TABLE, NOWHERE)
        tables = [part.table for part in outline.dense] + ([self._group] if outline.group else [])
        self._parts: dict[int, list[tuple[Keys, Rows]]] = {table: [] for table in tables}

    def add(self, found: Found) -> None:
        for table, parts in self._parts.items():
            if table in found and len(found[table][0]):
                parts.append(found[table])

    def tensors(self) -> dict[str, torch.Tensor]:
        joined = {
            table: (np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts]))
            for table, parts in self._parts.items()
            if parts
        }
        nothing = np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.float32)
        found = {part.name: _tensor(part, *joined.get(part.table, nothing)) for part in self._outline.dense}
        if self._outline.group:
            found |= _of_group(self._outline.group, *joined.get(self._group, nothing))
        return found


def _of_group(names: tuple[str, ...], keys: Keys, rows: Rows) -> dict[str, torch.Tensor]:
    """Decode the dense model of a bsp group; ignore rows that a longer, earlier model left."""
    order = np.argsort(keys)
    count = group_model.rows_after(rows[order[0]]) if len(keys) and keys[order[0]] == 0 else None
    if count is None or (keys[order[: 1 + count]] != np.arange(min(1 + count, len(keys)))).any():
        raise errors.BadInput("the checkpoint lacks the dense parameters of its bsp group, or a part of them")
    saved = group_model.decode(group_model.body_of(rows[order[: 1 + count]]))
    if len(saved.dense) != len(names):
        raise errors.BadInput(f"the bsp group kept {len(saved.dense)} dense tensors, its model has {len(names)}")
    return {name: group_model.shaped(*one) for name, one in zip(names, saved.dense, strict=True) if name}


def _tensor(part: DenseOutline, keys: Keys, rows: Rows) -> torch.Tensor:
    order = np.argsort(keys)
    wanted = np.arange(part.first, part.first + part.chunks)
    at = np.searchsorted(keys, wanted, sorter=order)
    if len(keys) == 0 or (keys[order[np.minimum(at, len(keys) - 1)]] != wanted).any():
        raise errors.BadInput(f"the checkpoint lacks a part of the dense tensor {part.name!r}")
    flat = torch.from_numpy(rows[order[at]].reshape(-1).copy())
    count = int(np.prod(part.shape, dtype=np.int64))
    return flat[:count].reshape(part.shape).to(getattr(torch, part.dtype))
