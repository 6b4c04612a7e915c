"""Continuous export: deltas, periodic full exports, removal of old ones, always an intact one to read."""

import msgspec
import numpy as np
import pytest
import torch

from springtide import errors, export
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import DenseOutline, Outline, TableOutline, TableSpec
from springtide.embedding.lookup.table_client import native_spec
from springtide.export import export_folder, exporter
from springtide.export.export_folder import ExportCard
from springtide.export.exporter import ContinuousExport
from tests.unit.checkpoint import stores
from tests.unit.export.exports import outlined

OUTLINE = Outline(tables=(TableOutline(name="ids", paths=("bag",), rows=0),))


def card(number, since=None):
    return ExportCard(
        job="demo", number=number, since=since, samples=0, made_at=0.0, format="safetensors", tables=(), dense_crc=0
    )


def test_chain_of_deltas_ends_with_a_full_export():
    cards = []
    for number in range(1, 40):
        cards.append(card(number, exporter.builds_on(cards)))
    assert [one.number for one in cards if one.since is None] == [1, 13, 25, 37]
    assert all(one.since in (None, one.number - 1) for one in cards)
    assert exporter.outdated(cards) == list(range(1, 25)) and exporter.outdated(cards[:20]) == []


def test_every_checkpoint_is_exported_once_as_a_delta(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url)
    assert follower.once() is None, "there is no checkpoint yet"
    for number, keys in ((1, range(100)), (2, range(95, 105)), (5, range(3))):
        stores.train(store, keys)
        outlined(tmp_path / "checkpoints", store, OUTLINE, number)
        made = follower.once()
        assert made is not None and (made.number, made.rows) == (number, len(keys))
        assert follower.once() is None
        rows, _ = stores.contents(store)
        found = export.read(url).tables["ids"]
        assert dict(zip(found.keys.tolist(), map(tuple, found.rows.tolist()), strict=True)) == rows
        if number == 2:
            follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url)  # someone else goes on


def test_damaged_base_is_not_used(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    (tmp_path / "exports" / "export-000001" / "table-0.safetensors").write_bytes(b"torn")
    stores.train(store, range(2))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 2)
    made = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once()
    assert made is not None and made.since is None and made.rows == 10


def test_exports_of_another_job_are_not_mixed_in(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 3)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    outlined(tmp_path / "others", store, OUTLINE, 2)
    with pytest.raises(errors.BadInput, match="Choose another place"):
        ContinuousExport(FolderStore(tmp_path / "others"), url).once()


def test_removed_export_leaves_no_card(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, np.arange(4))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    export_folder.remove(url, 1)
    assert export_folder.numbers(url) == [] and not list((tmp_path / "exports").iterdir())


def test_copies_are_exported_for_checkpoints_on_server_disks(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, range(20))
    for number, place in ((4, "copies"), (6, "checkpoints")):
        outlined(tmp_path / place, store, OUTLINE, number)
    for segments in (tmp_path / "checkpoints").glob("*.seg"):
        segments.unlink()
    with pytest.raises(errors.BadInput, match="checkpoint 6"):
        ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once()
    made = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url, copies=FolderStore(tmp_path / "copies")).once()
    assert made.number == 4


def test_leftovers_of_a_killed_exporter_are_removed_by_the_next(tmp_path):
    store, url = stores.store(), tmp_path / "exports"
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 3)
    (url / "export-000002").mkdir(parents=True)
    (url / "export-000002" / "index.bin.part").write_bytes(b"half")
    follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), str(url))
    assert follower.once() is not None
    assert sorted(each.name for each in url.iterdir()) == ["export-000003"]


def test_resumed_exporter_exports_when_due_and_the_first_at_once(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url)
    assert follower.due_s(300, now=1e9) == 0
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    made = follower.once()
    assert follower.due_s(300, now=made.made_at + 100) == pytest.approx(200)
    assert follower.due_s(300, now=made.made_at + 1000) == 0
    assert follower.due_s(300, now=made.made_at - 1000) == 300, "the clock was set back"


def export_card(number, *, samples=0, step=0):
    return export_folder.ExportCard(
        job="train",
        number=number,
        samples=samples,
        step=step,
        made_at=0.0,
        format="safetensors",
        tables=(),
        dense_crc=0,
    )


@pytest.mark.parametrize(
    ("text", "meant"), [("7", ("export", 7)), ("step:500", ("step", 500)), ("samples:1_000_000", ("samples", 10**6))]
)
def test_delta_base_is_an_export_number_or_a_named_moment(text, meant):
    assert exporter.parse_since(text) == exporter.DeltaBase(*meant)


@pytest.mark.parametrize("text", ["", "steps:4", "step:", "-1", "samples:x", "7.5"])
def test_invalid_delta_base_is_refused_with_what_is_expected(text):
    with pytest.raises(errors.BadInput, match=r"expected the number of an export, such as 7.*samples:1000000, step:5"):
        exporter.parse_since(text)


def test_newest_export_made_by_then_is_the_base():
    cards = [export_card(9, samples=900), export_card(7, samples=700), export_card(4, samples=400)]
    assert exporter.base_of(exporter.parse_since("samples:700"), cards, before=10) == 7
    assert exporter.base_of(exporter.parse_since("samples:899"), cards, before=10) == 7
    assert exporter.base_of(exporter.parse_since("samples:5000"), cards, before=9) == 7
    assert exporter.base_of(exporter.parse_since("last"), cards, before=9) == 7
    of_steps = [export_card(3, step=60), export_card(2, step=40)]
    assert exporter.base_of(exporter.parse_since("step:50"), of_steps, before=4) == 2


def test_moment_before_all_exports_lists_the_existing_ones():
    with pytest.raises(errors.MissingFile, match=r"no export is that old; exports: 4 \(samples 400\)"):
        exporter.base_of(exporter.parse_since("samples:399"), [export_card(4, samples=400)], before=9)
    with pytest.raises(errors.MissingFile, match=r"exports: none"):
        exporter.base_of(exporter.parse_since("step:1"), [], before=9)
    with pytest.raises(errors.MissingFile, match="no export is older than checkpoint 4"):
        exporter.base_of(exporter.parse_since("last"), [export_card(4, samples=400)], before=4)


def test_async_job_has_no_steps():
    with pytest.raises(errors.BadInput, match=r"have no step, .* Use samples:N"):
        exporter.base_of(exporter.parse_since("step:500"), [export_card(4, samples=400)], before=9)


def test_tables_and_dense_tensors_are_assembled_from_slots(tmp_path):
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


def group_checkpoint(folder, names, *tensors, before=b"", lost=()):
    """A checkpoint with these tensors of a bsp group, optionally after a longer model."""
    store = stores.store()
    store.declare(native_spec(GROUP))
    place = group_model.GroupPosition(7, 0, 0, [])
    body = msgspec.msgpack.encode(group_model.SavedGroup(1, place, [group_model.flat(one) for one in tensors], [], []))
    for content in (before, body):
        rows = group_model.rows_of(content)
        keys = np.array([key for key in range(len(rows)) if key not in lost], dtype=np.int64)
        store.assign(np.full(len(keys), GROUP.id, dtype=np.uint16), keys, rows[keys].reshape(-1))
    return outlined(folder, store, Outline(group=names), tables=(stores.TABLE, GROUP))


def test_dense_model_of_a_bsp_group_is_exported_with_its_buffers(tmp_path):
    weight, mean, mask = torch.randn(3, 700, dtype=torch.float64), torch.arange(5), torch.ones(2, dtype=torch.bool)
    weight[0, 0] = float("nan")
    manifest = group_checkpoint(tmp_path, ("top.weight", "norm.mean", ""), weight, mean, mask, before=b"x" * 100_000)
    exporter.make(FolderStore(tmp_path), manifest, str(tmp_path / "out"), format="safetensors")
    found = export.read(str(tmp_path / "out"))

    assert found.dense.keys() == {"top.weight", "norm.mean"} and found.left_out == ()
    assert found.dense["top.weight"].numpy().tobytes() == weight.numpy().tobytes()
    assert torch.equal(found.dense["norm.mean"], mean)


@pytest.mark.parametrize("lost", [(0,), (2,), range(9)])
def test_bsp_group_with_an_incomplete_model_is_not_exported(tmp_path, lost):
    manifest = group_checkpoint(tmp_path, ("w",), torch.ones(3, 1024), lost=lost)
    with pytest.raises(errors.BadInput, match="lacks dense parameters of its bsp group"):
        exporter.make(FolderStore(tmp_path), manifest, str(tmp_path / "out"), format="safetensors")


def test_parts_missing_in_a_checkpoint_are_named(tmp_path):
    store, url = stores.store(), str(tmp_path / "out")
    for outline, match in (
        (Outline(tables=(TableOutline(name="users", paths=(), rows=0),)), "lacks the table 'users'"),
        (Outline(dense=(DenseOutline(name="w", shape=(4,), dtype="float32", table=3, first=0, chunks=1),)), "'w'"),
    ):
        manifest = outlined(tmp_path, store, outline)
        with pytest.raises(errors.BadInput, match=match):
            exporter.make(FolderStore(tmp_path), manifest, url, format="safetensors")
    with pytest.raises(errors.BadInput, match="has no outline of its model"):
        published = stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2))
        exporter.make(FolderStore(tmp_path), published, url, format="safetensors")
    with pytest.raises(errors.MissingFile, match="no exports"):
        export.read(url)
