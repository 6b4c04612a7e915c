"""A model comes out of a checkpoint as its servers held it."""

import msgspec
import numpy as np
import pytest
import torch

from springtide import errors
from springtide.checkpoint import writer
from springtide.checkpoint.places import Folder
from springtide.domain.outline import DenseOutline, Outline, TableOutline
from springtide.export.collect import collect
from tests.unit.checkpoint import stores


def outlined(folder, store, outline, number=1):
    made = stores.publish(folder, number, stores.save(store, folder, number))
    made = msgspec.structs.replace(made, outline=msgspec.msgpack.encode(outline), samples=700)
    writer.publish(Folder(folder), made)
    return made


def test_tables_and_dense_tensors_are_put_together_from_slots(tmp_path):
    store = stores.store()
    stores.train(store, range(100, 140))
    keys = np.arange(3, dtype=np.int64)  # three chunks of four: a dense tensor of nine floats and its padding
    store.assign(np.full(3, stores.TABLE.id, dtype=np.uint16), keys, np.arange(12, dtype=np.float32))
    outline = Outline(
        tables=(TableOutline(name="ids", paths=("bag",), rows=0),),
        dense=(DenseOutline(name="w", shape=(3, 3), dtype="bfloat16", table=stores.TABLE.id, first=0, chunks=3),),
        in_workers=("steps",),
    )  # fmt: skip
    seen = []
    model = collect(Folder(tmp_path), outlined(tmp_path, store, outline), seen.append)

    assert model.samples == 700 and model.left_out == ("steps",) and len(seen) == stores.SLOTS
    assert model.tables["ids"].keys.tolist() == [0, 1, 2, *range(100, 140)]
    rows, _ = stores.contents(store)
    assert {
        int(k): tuple(r) for k, r in zip(model.tables["ids"].keys, model.tables["ids"].rows.tolist(), strict=True)
    } == rows
    assert torch.equal(model.dense["w"], torch.arange(9, dtype=torch.bfloat16).reshape(3, 3))


def test_what_a_checkpoint_lacks_is_named(tmp_path):
    store = stores.store()
    for outline, match in (
        (Outline(tables=(TableOutline(name="users", paths=(), rows=0),)), "lacks the table 'users'"),
        (Outline(dense=(DenseOutline(name="w", shape=(4,), dtype="float32", table=3, first=0, chunks=1),)), "'w'"),
    ):
        manifest = outlined(tmp_path, store, outline)
        with pytest.raises(errors.BadInput, match=match):
            collect(Folder(tmp_path), manifest)
    with pytest.raises(errors.BadInput, match="does not say what model"):
        collect(Folder(tmp_path), stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2)))
