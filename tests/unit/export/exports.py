"""Checkpoints of small models and their exports, for tests."""

import msgspec
import numpy as np

from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import SavedProgress
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import DenseOutline, Outline, TableOutline, TableSpec
from springtide.embedding.lookup.table_client import native_spec
from springtide.export import exporter
from tests.unit.checkpoint import stores

DENSE = TableSpec(id=9, name="dense", dim=4)
PLAIN = Outline(
    tables=(TableOutline(name="ids", paths=("bag", "twin"), rows=6),),
    dense=(
        DenseOutline(name="top.weight", shape=(1, 4), dtype="float32", table=9, first=0, chunks=1),
        DenseOutline(name="top.bias", shape=(1,), dtype="float32", table=9, first=1, chunks=1),
    ),
    in_workers=("steps",),
)
"""Of a model with one table of dim 4 in two places, and a linear layer on top."""


def outlined(folder, store, outline, number=1, tables=(stores.TABLE,)):
    """A checkpoint of a store with the outline of its model."""
    made = stores.publish(folder, number, stores.save(store, folder, number))
    made = msgspec.structs.replace(
        made, outline=msgspec.msgpack.encode(outline), progress=SavedProgress(samples=700), tables=tables
    )
    checkpoint_io.publish(FolderStore(folder), made)
    return made


def exported(folder, number, rows, *, url=None, since=None, format="safetensors"):
    """An export of the plain model with these rows by key, and its number in `top.weight`."""
    store = stores.store()
    store.declare(native_spec(DENSE))
    keys = np.array(list(rows), dtype=np.int64)
    values = np.array(list(rows.values()), dtype=np.float32).reshape(-1)
    store.assign(np.full(len(keys), stores.TABLE.id, dtype=np.uint16), keys, values)
    top = np.array([[number] * 4, [0] * 4], dtype=np.float32).reshape(-1)
    store.assign(np.full(2, DENSE.id, dtype=np.uint16), np.arange(2, dtype=np.int64), top)
    place = folder / f"checkpoint-{number}"
    manifest = outlined(place, store, PLAIN, number, tables=(stores.TABLE, DENSE))
    return exporter.make(FolderStore(place), manifest, url or str(folder / "exports"), format=format, since=since)
