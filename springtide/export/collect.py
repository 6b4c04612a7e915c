"""Takes a model out of a checkpoint: slot by slot, so that beside the result only one slot is in memory.

In: a place with checkpoints and a manifest (`checkpoint.reader`). Out: an `export.model.Model`.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import torch

from springtide import _native, errors
from springtide.checkpoint import reader
from springtide.checkpoint.manifest import Manifest
from springtide.checkpoint.places import Place
from springtide.domain.outline import DenseOutline, Outline
from springtide.embedding.specs import native_spec
from springtide.export.model import Keys, Model, Rows, Table, in_order

Found = dict[int, tuple[Keys, Rows]]
"""Keys and rows by table."""


def collect(place: Place, manifest: Manifest, progress: Callable[[int], None] = lambda slot: None) -> Model:
    """The whole model of this checkpoint; `progress` is told of every slot."""
    if not manifest.outline:
        raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} does not say what model it is of")
    outline = msgspec.msgpack.decode(manifest.outline, type=Outline)
    found = _rows(place, manifest, progress)
    specs = {spec.name: spec for spec in manifest.tables}
    tables: dict[str, Table] = {}
    for part in outline.tables:
        spec = specs.get(part.name)
        if spec is None:
            raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} lacks the table {part.name!r}")
        tables[part.name] = in_order(part, spec.dtype, *found[spec.id])
    dense = {part.name: _tensor(part, *found[part.table]) for part in outline.dense}
    return Model(
        job=manifest.job, number=manifest.number, samples=manifest.samples, tables=tables, dense=dense,
        left_out=outline.in_workers,
    )  # fmt: skip


def _rows(place: Place, manifest: Manifest, progress: Callable[[int], None]) -> Found:
    store = _native.Store(slots=manifest.slots, seed=manifest.seed)
    parts: dict[int, list[tuple[Keys, Rows]]] = {}
    for spec in manifest.tables:
        store.declare(native_spec(spec))
        parts[spec.id] = []
    for slot in range(manifest.slots):
        for image in reader.images(place, manifest, slot):
            store.import_slot(image)
        for spec in manifest.tables:
            keys, rows = store.scan(spec.id, slot)
            if len(keys):
                parts[spec.id].append((keys, rows.reshape(-1, spec.dim)))
        store.clear_slot(slot)
        progress(slot)
    dims = {spec.id: spec.dim for spec in manifest.tables}
    return {table: _joined(found, dims[table]) for table, found in parts.items()}


def _joined(parts: list[tuple[Keys, Rows]], dim: int) -> tuple[Keys, Rows]:
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty((0, dim), dtype=np.float32)
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])


def _tensor(part: DenseOutline, keys: Keys, rows: Rows) -> torch.Tensor:
    """A dense tensor from its chunks."""
    order = np.argsort(keys)
    wanted = np.arange(part.first, part.first + part.chunks)
    at = np.searchsorted(keys, wanted, sorter=order)
    if len(keys) == 0 or (keys[order[np.minimum(at, len(keys) - 1)]] != wanted).any():
        raise errors.BadInput(f"the checkpoint lacks a part of the dense tensor {part.name!r}")
    flat = torch.from_numpy(rows[order[at]].reshape(-1).copy())
    count = int(np.prod(part.shape, dtype=np.int64))
    return flat[:count].reshape(part.shape).to(getattr(torch, part.dtype))
