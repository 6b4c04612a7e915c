"""A model comes out of a checkpoint as its servers held it."""

import msgspec
import numpy as np
import pytest
import torch

from springtide import errors, export
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import DenseOutline, Outline, TableOutline, TableSpec
from springtide.embedding.lookup.specs import native_spec
from springtide.export import exporter
from tests.unit.checkpoint import stores
from tests.unit.export.exports import outlined


def test_tables_and_dense_tensors_are_put_together_from_slots(tmp_path):
    store = stores.store()
    stores.train(store, range(100, 140))
    keys = np.arange(3, dtype=np.int64)  # three chunks of four: a dense tensor of nine floats and its padding
    store.assign(np.full(3, stores.TABLE.id, dtype=np.uint16), keys, np.arange(12, dtype=np.float32))
    outline = Outline(
        tables=(TableOutline(name="ids", paths=("bag",), rows=0),),
        dense=(DenseOutline(name="w", shape=(3, 3), dtype="bfloat16", table=stores.TABLE.id, first=0, chunks=3),),
        in_workers=("steps",),
    )
    seen = []
    manifest = outlined(tmp_path, store, outline)
    exporter.make(FolderStore(tmp_path), manifest, str(tmp_path / "out"), format="safetensors", progress=seen.append)
    model = export.read(str(tmp_path / "out"))

    assert model.samples == 700 and model.left_out == ("steps",) and len(seen) == stores.SLOTS
    assert model.tables["ids"].keys.tolist() == [0, 1, 2, *range(100, 140)]
    rows, _ = stores.contents(store)
    assert {
        int(k): tuple(r) for k, r in zip(model.tables["ids"].keys, model.tables["ids"].rows.tolist(), strict=True)
    } == rows
    assert torch.equal(model.dense["w"], torch.arange(9, dtype=torch.bfloat16).reshape(3, 3))


GROUP = TableSpec(id=9, name=group_model.TABLE, dim=group_model.ROW)


def of_a_group(folder, names, *tensors, before=b"", lost=()):
    """A checkpoint whose servers were given these tensors by a bsp group, after a longer model perhaps."""
    store = stores.store()
    store.declare(native_spec(GROUP))
    place = group_model.GroupPosition(7, 0, 0, [])
    body = msgspec.msgpack.encode(group_model.SavedGroup(1, place, [group_model.flat(one) for one in tensors], [], []))
    for content in (before, body):
        rows = group_model.rows_of(content)
        keys = np.array([key for key in range(len(rows)) if key not in lost], dtype=np.int64)
        store.assign(np.full(len(keys), GROUP.id, dtype=np.uint16), keys, rows[keys].reshape(-1))
    return outlined(folder, store, Outline(group=names), tables=(stores.TABLE, GROUP))


def test_the_dense_model_of_a_bsp_group_is_exported_with_its_buffers(tmp_path):
    weight, mean, mask = torch.randn(3, 700, dtype=torch.float64), torch.arange(5), torch.ones(2, dtype=torch.bool)
    weight[0, 0] = float("nan")
    manifest = of_a_group(tmp_path, ("top.weight", "norm.mean", ""), weight, mean, mask, before=b"x" * 100_000)
    exporter.make(FolderStore(tmp_path), manifest, str(tmp_path / "out"), format="safetensors")
    found = export.read(str(tmp_path / "out"))

    assert found.dense.keys() == {"top.weight", "norm.mean"} and found.left_out == ()
    assert found.dense["top.weight"].numpy().tobytes() == weight.numpy().tobytes()
    assert torch.equal(found.dense["norm.mean"], mean)


@pytest.mark.parametrize("lost", [(0,), (2,), range(9)])
def test_a_bsp_group_without_a_part_of_its_model_is_not_exported(tmp_path, lost):
    manifest = of_a_group(tmp_path, ("w",), torch.ones(3, 1024), lost=lost)
    with pytest.raises(errors.BadInput, match="lacks the dense parameters of its bsp group"):
        exporter.make(FolderStore(tmp_path), manifest, str(tmp_path / "out"), format="safetensors")


def test_what_a_checkpoint_lacks_is_named(tmp_path):
    store, url = stores.store(), str(tmp_path / "out")
    for outline, match in (
        (Outline(tables=(TableOutline(name="users", paths=(), rows=0),)), "lacks the table 'users'"),
        (Outline(dense=(DenseOutline(name="w", shape=(4,), dtype="float32", table=3, first=0, chunks=1),)), "'w'"),
    ):
        manifest = outlined(tmp_path, store, outline)
        with pytest.raises(errors.BadInput, match=match):
            exporter.make(FolderStore(tmp_path), manifest, url, format="safetensors")
    with pytest.raises(errors.BadInput, match="does not say what model"):
        published = stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2))
        exporter.make(FolderStore(tmp_path), published, url, format="safetensors")
    with pytest.raises(errors.MissingFile, match="no exports"):
        export.read(url)
