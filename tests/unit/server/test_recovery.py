"""A restored server has the slots of the newest intact checkpoint from any readable source."""

import shutil

import pytest

from springtide import errors
from springtide.domain.model.checkpoints import Lineage
from springtide.rpc.messages.types import RestoreOrder
from springtide.server import recovery
from springtide.server.recovery import RestoredFrom
from tests.unit.checkpoint import stores

SLOTS = tuple(range(10, 40))


@pytest.fixture
def saved(tmp_path):
    """Two checkpoints of a store, and its contents at each."""
    store, folder, held = stores.store(), tmp_path / "local", {}
    folder.mkdir()
    for number in (1, 2):
        stores.train(store, range(500 * number), batch=(0, number, 0, 4))
        stores.publish(folder, number, stores.save(store, folder, number, life=f"server-0.{number}"))
        held[number] = part(store)
    return folder, held


def part(store):
    """Rows and identities of the slots in question."""
    rows, applied = stores.contents(store)
    slot_of = {key: int(store.slot_of(stores.TABLE.id, stores.np.array([key]))[0]) for key in rows}
    return {key: row for key, row in rows.items() if slot_of[key] in SLOTS}, [applied[slot] for slot in SLOTS]


def empty():
    return stores._native.Store(slots=stores.SLOTS, seed=5)


def corrupt_images(path):
    """Other bytes in the middle of every image."""
    content = bytearray(path.read_bytes())
    content[100::200] = bytes(value ^ 0xFF for value in content[100::200])
    path.write_bytes(content)


def test_requested_slots_are_restored_with_their_identities(saved):
    folder, held = saved
    store = empty()
    assert recovery.bring_back(store, RestoreOrder(str(folder), 2, SLOTS, stores.LINEAGE)) == RestoredFrom(
        str(folder), 2
    )
    assert part(store) == held[2]
    assert all(store.applied(slot) == [] for slot in range(stores.SLOTS) if slot not in SLOTS)


def test_damaged_checkpoint_is_skipped_for_the_previous_without_residue(saved, caplog):
    folder, held = saved
    corrupt_images(folder / "server-0.2-000002.run1.seg")
    store = empty()
    source = recovery.bring_back(store, RestoreOrder(str(folder), 2, SLOTS, stores.LINEAGE))
    assert (source.where, source.number) == (str(folder), 1) and part(store) == held[1]
    (said,) = source.unusable
    assert said.startswith(f"checkpoint 2 in {folder} cannot be used: the image of slot") and "damaged" in said
    assert said in caplog.text


def test_checkpoint_of_another_run_is_refused_despite_the_right_number(saved):
    folder, _ = saved
    with pytest.raises(errors.JobFailed, match="the checkpoint is of run run1 of job 'test', but this is run run2"):
        recovery.bring_back(empty(), RestoreOrder(str(folder), 2, SLOTS, Lineage("run2")))


def test_resumed_run_may_restore_its_predecessor_up_to_the_resume_point(saved):
    folder, held = saved
    store = empty()
    source = recovery.bring_back(store, RestoreOrder(str(folder), 2, SLOTS, Lineage("run2", "run1", 1)))
    assert source.number == 1 and part(store) == held[1]
    assert "the checkpoint is of run run1, from which this job continued at checkpoint 1" in source.unusable[0]


def test_restore_reads_storage_when_the_folder_is_missing(saved, tmp_path):
    folder, held = saved
    shutil.move(folder, tmp_path / "storage")
    store = empty()
    wanted = RestoreOrder(str(folder), 2, SLOTS, stores.LINEAGE, fallback=f"file://{tmp_path / 'storage'}")
    source = recovery.bring_back(store, wanted)
    assert (source.where, source.number) == (wanted.fallback, 2) and part(store) == held[2]
    assert [said.split(":")[0] for said in source.unusable] == [f"checkpoint 2 in {folder} cannot be used"]


def test_failed_restore_lists_everything_tried(saved):
    folder, _ = saved
    for path in folder.glob("*.seg"):
        path.unlink()
    with pytest.raises(errors.JobFailed, match=r"no checkpoint has its slots: .*checkpoint 2.*checkpoint 1"):
        recovery.bring_back(empty(), RestoreOrder(str(folder), 2, SLOTS, stores.LINEAGE))


def test_server_without_slots_learns_the_tables_and_restores_nothing(saved):
    folder, _ = saved
    for number, tables in ((2, [stores.TABLE.name]), (7, [])):  # one that cannot be read is no reason to fail
        store = empty()
        assert recovery.bring_back(store, RestoreOrder(str(folder), number, (), stores.LINEAGE)) == RestoredFrom("", 0)
        assert [spec.name for spec in store.tables()] == tables and store.rows() == 0
