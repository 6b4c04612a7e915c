"""A job is exported again and again: deltas, now and then all of it; old ones go, readers always find a whole one."""

import numpy as np
import pytest

from springtide import errors, export
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import Outline, TableOutline
from springtide.export import continuous, export_folder
from springtide.export.continuous import ContinuousExport
from springtide.export.export_folder import ExportCard
from tests.unit.checkpoint import stores
from tests.unit.export.exports import outlined

OUTLINE = Outline(tables=(TableOutline(name="ids", paths=("bag",), rows=0),))


def card(number, since=None):
    return ExportCard(
        job="demo", number=number, since=since, samples=0, made_at=0.0, format="safetensors", tables=(), dense_crc=0
    )


def test_a_chain_of_deltas_ends_with_a_whole_export():
    cards = []
    for number in range(1, 40):
        cards.append(card(number, continuous.builds_on(cards)))
    assert [one.number for one in cards if one.since is None] == [1, 13, 25, 37]
    assert all(one.since in (None, one.number - 1) for one in cards)
    assert continuous.outdated(cards) == list(range(1, 25)) and continuous.outdated(cards[:20]) == []


def test_every_checkpoint_is_exported_once_as_what_changed_and_read_as_the_whole(tmp_path):
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


def test_a_base_that_is_damaged_is_not_built_on(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    (tmp_path / "exports" / "export-000001" / "table-0.safetensors").write_bytes(b"torn")
    stores.train(store, range(2))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 2)
    made = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once()
    assert made is not None and made.since is None and made.rows == 10


def test_exports_of_another_job_are_not_mixed_with(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 3)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    outlined(tmp_path / "others", store, OUTLINE, 2)
    with pytest.raises(errors.BadInput, match="choose another place"):
        ContinuousExport(FolderStore(tmp_path / "others"), url).once()


def test_an_export_that_is_removed_leaves_no_card(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    stores.train(store, np.arange(4))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    assert ContinuousExport(FolderStore(tmp_path / "checkpoints"), url).once() is not None
    export_folder.remove(url, 1)
    assert export_folder.numbers(url) == [] and not list((tmp_path / "exports").iterdir())


def test_of_checkpoints_on_disks_of_servers_the_copies_are_exported(tmp_path):
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


def test_what_a_killed_exporter_left_goes_when_the_next_one_exports(tmp_path):
    store, url = stores.store(), tmp_path / "exports"
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 3)
    (url / "export-000002").mkdir(parents=True)
    (url / "export-000002" / "index.bin.part").write_bytes(b"half")
    follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), str(url))
    assert follower.once() is not None
    assert sorted(each.name for each in url.iterdir()) == ["export-000003"]


def test_who_goes_on_exports_when_it_is_due_and_the_first_is_due_at_once(tmp_path):
    store, url = stores.store(), str(tmp_path / "exports")
    follower = ContinuousExport(FolderStore(tmp_path / "checkpoints"), url)
    assert follower.due_s(300, now=1e9) == 0
    stores.train(store, range(10))
    outlined(tmp_path / "checkpoints", store, OUTLINE, 1)
    made = follower.once()
    assert follower.due_s(300, now=made.made_at + 100) == pytest.approx(200)
    assert follower.due_s(300, now=made.made_at + 1000) == 0
    assert follower.due_s(300, now=made.made_at - 1000) == 300, "the clock was set back"
