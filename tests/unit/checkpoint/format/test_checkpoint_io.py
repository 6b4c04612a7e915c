"""Find the newest intact checkpoint; report torn, damaged and missing ones and use the previous."""

import errno
import resource
import types

import numpy as np
import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io, manifest
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from springtide.embedding.lookup import table_client
from springtide.server import recovery
from tests.unit.checkpoint import stores


@pytest.fixture
def two(tmp_path):
    """A store saved in full and then incrementally, with its contents at both times."""
    store = stores.store()
    stores.train(store, range(1000), batch=(0, 0, 0, 10))
    cut = store.cut()
    first = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    then = stores.contents(store)
    stores.train(store, range(0, 1000, 100), batch=(0, 0, 10, 10))
    stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2, previous=first, cut=cut), previous=first)
    return tmp_path, then, stores.contents(store)


def restored(found):
    store = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(store, found.place.where, found.manifest.number, range(stores.SLOTS))
    return stores.contents(store)


def test_rows_state_and_identities_are_restored_from_full_and_increment(two):
    folder, _, now = two
    found = checkpoint_io.latest(str(folder))
    assert found.manifest.number == 2 and not found.troubles
    assert restored(found) == now


def test_increment_is_small(two):
    folder, _, _ = two
    found = checkpoint_io.latest(str(folder))
    first = checkpoint_io.read(str(folder), 1)
    assert found.manifest.bytes_written < first.bytes_written / 3
    assert first.full and not found.manifest.full


def test_optimizer_state_is_restored(two):
    folder, _, _ = two
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(folder), 2, range(stores.SLOTS))
    fresh = stores.store()
    stores.train(fresh, range(1000))
    stores.train(fresh, range(0, 1000, 100))
    for store in (again, fresh):
        stores.train(store, range(1000))
    assert stores.contents(again)[0] == stores.contents(fresh)[0]


@pytest.mark.parametrize("harm", ["torn segment", "torn manifest", "missing segment", "flipped byte", "flipped name"])
def test_previous_checkpoint_is_used_when_the_newest_is_damaged(two, harm):
    folder, then, _ = two
    newest = folder / ("manifest-000002.ckpt" if "manifest" in harm or "name" in harm else "server-0.0-000002.run1.seg")
    content = bytearray(newest.read_bytes())
    if harm == "missing segment":
        newest.unlink()
    else:
        content[len(content) // 2] ^= 1 if "flipped" in harm else 0
        newest.write_bytes(content[: len(content) - (7 if "torn" in harm else 0)])
    found = checkpoint_io.latest(str(folder))
    assert found.manifest.number == 1
    assert len(found.troubles) == 1 and "checkpoint 2" in found.troubles[0]
    assert restored(found) == then


def test_damaged_first_image_leaves_no_usable_checkpoint(two):
    folder, _, _ = two
    path = folder / "server-0.0-000001.run1.seg"
    path.write_bytes(path.read_bytes()[:-1])
    found = checkpoint_io.latest(str(folder))
    assert found.manifest is None and len(found.troubles) == 2


def test_any_damaged_byte_of_an_image_is_detected_before_it_is_used(two):
    """The number of its version too, which is in no checksum: servers would refuse the image, again and again."""
    found = checkpoint_io.latest(FolderStore(two[0]))
    (segment, *_), file = found.manifest.chains[7], found.manifest.files[0]
    image = found.place.read(file.name, segment.offset, segment.length)
    image += found.place.read(file.name, *segment.identities)
    checkpoint_io.check_image(file.name, 7, segment, image)
    for at in range(len(image)):
        hit = bytearray(image)
        hit[at] ^= 4
        with pytest.raises(checkpoint_io.DamagedImage, match="the image of slot 7"):
            checkpoint_io.check_image(file.name, 7, segment, bytes(hit))


def test_only_requested_slots_are_compared(two):
    folder, _, _ = two
    whole = checkpoint_io.read(str(folder), 1)
    segment = whole.chains[10][0]
    path = folder / "server-0.0-000001.run1.seg"
    content = bytearray(path.read_bytes())
    content[segment.offset + segment.length - 1] ^= 0x10
    path.write_bytes(content)
    assert checkpoint_io.latest(str(folder), slots=[9, 11]).manifest.number == 2
    assert checkpoint_io.latest(str(folder), slots=()).manifest.number == 2
    assert checkpoint_io.latest(str(folder), slots=[10]).manifest is None
    with pytest.raises(errors.BadInput, match=r"slot 10 .* damaged"):
        recovery.restore(stores._native.Store(slots=stores.SLOTS, seed=5), str(folder), 1, [10])


def test_slots_with_equal_identities_store_them_once(tmp_path):
    store = stores.store()
    stores.train(store, range(100), batch=(0, 0, 0, 10))
    stores.leave_gaps(store, 500)
    made = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    assert {chain[0].identities[1] for chain in made.chains} == {24 * 501}
    assert len({chain[0].identities for chain in made.chains}) == 1
    in_memory = sum(len(store.export_slot(slot)) for slot in range(stores.SLOTS))
    assert made.bytes_written == in_memory - (stores.SLOTS - 1) * 24 * 501
    assert restored(checkpoint_io.latest(str(tmp_path))) == stores.contents(store)


def test_restored_store_has_applied_exactly_each_slots_batches(tmp_path, rng):
    store = stores.store()
    batches = [(0, int(rng.integers(0, 9)), 4 * at, 4) for at in range(60)]
    keys = np.arange(200, dtype=np.int64)
    tables, hyper = np.full(200, stores.TABLE.id, np.uint16), [(stores.TABLE.id, stores._native.Hyper(lr=0.5))]

    def push(into, batch, covers):
        stats = into.push_once(tables, keys, np.ones(200 * stores.TABLE.dim, np.float32), hyper, [batch], covers)
        return stats.applied, stats.had_keys

    for number, batch in enumerate(batches):
        push(store, batch, rng.integers(0, 2, stores.SLOTS).astype(np.uint8) if number % 3 == 0 else None)
    made = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    assert 1 < len({chain[0].identities for chain in made.chains}) <= stores.SLOTS
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, str(tmp_path), 1, range(stores.SLOTS))
    assert stores.contents(again) == stores.contents(store)
    for batch in [*batches, (0, 9, 0, 4)]:
        assert push(again, batch, None) == push(store, batch, None)
    assert stores.contents(again) == stores.contents(store)


@pytest.mark.parametrize("harm", ["flipped", "torn"])
def test_damage_to_shared_identities_is_detected_for_each_slot(tmp_path, harm):
    store = stores.store()
    stores.leave_gaps(store, 100)
    stores.train(store, range(100), batch=(0, 2, 0, 8))
    made = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    at, length = made.chains[0][0].identities
    path = tmp_path / made.files[0].name
    content = bytearray(path.read_bytes())
    if harm == "flipped":
        content[at + length // 2] ^= 1
    path.write_bytes(content if harm == "flipped" else content[: at + length // 2])
    for slot in range(stores.SLOTS):
        with pytest.raises(errors.BadInput, match=rf"slot {slot} at .* is (damaged|torn)"):
            checkpoint_io.verify(FolderStore(tmp_path), made, [slot])


def test_image_in_the_place_of_another_is_detected(two):
    folder, _, _ = two
    whole = checkpoint_io.read(str(folder), 1)
    swapped = list(whole.chains)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    with pytest.raises(errors.BadInput, match="is not the written image"):
        checkpoint_io.verify(FolderStore(folder), manifest.msgspec.structs.replace(whole, chains=tuple(swapped)), [3])


def test_checkpoint_that_was_deleted_meanwhile_is_named(two):
    (two[0] / manifest.name_of(2)).unlink()
    with pytest.raises(errors.MissingFile, match=r"checkpoint 2 is no longer in .*`springtide checkpoints` shows"):
        checkpoint_io.read(str(two[0]), 2)


def test_folder_without_checkpoints_has_none(tmp_path):
    for where in (tmp_path, tmp_path / "nowhere"):
        found = checkpoint_io.latest(str(where))
        assert found.manifest is None and not found.troubles


def test_run_folder_refers_to_its_checkpoints(two, tmp_path_factory):
    folder, _, now = two
    run = tmp_path_factory.mktemp("run")
    folder.rename(run / "checkpoints")
    assert restored(checkpoint_io.latest(str(run))) == now


def test_checkpoints_are_read_from_a_url(two):
    folder, _, now = two
    assert restored(checkpoint_io.latest(f"file://{folder}")) == now


def test_restore_into_several_stores_gives_the_same_rows(two):
    folder, _, (rows, _) = two
    rng = np.random.default_rng(7)
    server_of = rng.integers(0, 3, size=stores.SLOTS)
    together = {}
    for server in range(3):
        part = stores._native.Store(slots=stores.SLOTS, seed=5)
        recovery.restore(part, str(folder), 2, np.flatnonzero(server_of == server).tolist())
        mine = stores.contents(part)[0]
        assert not together.keys() & mine.keys()
        together |= mine
    assert together == rows


def test_table_spec_survives_the_native_core():
    store = stores.store()
    (native,) = store.tables()
    assert table_client.native_spec(table_client.plain_spec(native)) == native == table_client.native_spec(stores.TABLE)


def test_manifest_and_image_of_an_earlier_format_are_refused_with_both_numbers(tmp_path):
    made = stores.store()
    stores.train(made, range(10), batch=(10, 0, 0, 10))
    content = bytearray(manifest.encode(stores.publish(tmp_path, 1, stores.save(made, tmp_path, 1))))
    content[8] = manifest.FORMAT - 1
    with pytest.raises(errors.BadInput, match=r"format 4, from another version .* this one reads 5: use the version"):
        manifest.decode(bytes(content))
    image = bytearray(made.export_slot(0, 0))
    image[4] = 3
    with pytest.raises(errors.BadInput, match="slot image: version 3, this build reads version 4"):
        made.import_slot(bytes(image))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_is_deleted_with_the_last_manifest_that_names_it(tmp_path):
    store = stores.store()
    stores.train(store, range(100))
    cut = store.cut()
    first = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    second = stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2, previous=first, cut=cut), previous=first)
    third = stores.publish(tmp_path, 3, stores.save(store, tmp_path, 3))
    assert checkpoint_io.drop_unneeded(FolderStore(tmp_path), [second, third]) == ["manifest-000001.ckpt"]
    assert "server-0.0-000001.run1.seg" in names(tmp_path)  # the second builds on it
    assert set(checkpoint_io.drop_unneeded(FolderStore(tmp_path), [third])) == {
        "manifest-000002.ckpt",
        "server-0.0-000001.run1.seg",
        "server-0.0-000002.run1.seg",
    }
    assert checkpoint_io.latest(str(tmp_path)).manifest == third


def test_files_in_progress_and_foreign_files_are_kept(tmp_path):
    store = stores.store()
    first = stores.publish(tmp_path, 5, stores.save(store, tmp_path, 5))
    for name in ("server-1.0-000006.run1.part", "server-1.0-000006.run1.seg", "notes.txt"):
        (tmp_path / name).write_text("")
    for name in ("server-1.0-000004.run1.part", "server-1.0-000003.run1.seg", "manifest-000003.ckpt.part"):
        (tmp_path / name).write_text("")
    gone = checkpoint_io.drop_unneeded(FolderStore(tmp_path), [first])
    assert set(gone) == {"server-1.0-000004.run1.part", "server-1.0-000003.run1.seg", "manifest-000003.ckpt.part"}
    assert "notes.txt" in names(tmp_path) and "server-1.0-000006.run1.part" in names(tmp_path)


def test_incomplete_file_has_no_final_name(tmp_path):
    store = stores.store()
    with checkpoint_io.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file:
        file.append(0, stores.copy_of(store, 0))
        assert names(tmp_path) == ["server-0.0-000001.run1.part"]
    assert names(tmp_path) == []


def test_full_disk_raises_an_os_error_and_leaves_no_file(tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        pytest.raises(OSError, match="No space left"),
        checkpoint_io.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file,
    ):
        file.append(0, types.SimpleNamespace(write_on=full))
    assert names(tmp_path) == []


def test_native_store_raises_the_systems_write_error():
    store = stores.store()
    with open("/dev/full", "wb") as file, pytest.raises(OSError) as caught:
        stores.copy_of(store, 0).write_on(file.fileno(), 0)
    assert caught.value.errno == errno.ENOSPC


def test_in_memory_store_reads_and_writes_files():
    place = UrlStore("memory://springtide-test-places/here")
    assert place.names() == [] and place.size("a") is None
    place.write("a", b"0123456789")
    assert place.names() == ["a"] and place.size("a") == 10
    assert place.read("a", 2, 3) == b"234" and place.read("a", 8) == b"89"
    place.remove("a")
    place.remove("a")
    assert place.names() == []


def test_abandoned_checkpoint_leaves_only_files_others_need(tmp_path):
    store = stores.store()
    stores.train(store, range(100))
    first = stores.publish(tmp_path, 5, stores.save(store, tmp_path, 5))
    before = names(tmp_path)
    for name in (
        "server-0.0-000006.run1.seg",
        "server-1.0-000006.run1.part",
        "manifest-000006.ckpt",
        "server-0.0-000007.run1.part",
    ):
        (tmp_path / name).write_text("")
    gone = checkpoint_io.drop_unneeded(FolderStore(tmp_path), [first], given_up=6)
    assert gone[0] == "manifest-000006.ckpt", "a manifest never names files that are gone"
    assert names(tmp_path) == [*before, "server-0.0-000007.run1.part"]


@pytest.mark.parametrize("place", [FolderStore, lambda path: UrlStore(f"file://{path}")], ids=["folder", "url"])
def test_failed_disk_write_leaves_no_file(tmp_path, place):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    there, source = place(tmp_path / "there"), tmp_path / "source"
    source.write_bytes(bytes(100_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            there.write("manifest-000001.ckpt", bytes(100_000))
        if isinstance(there, UrlStore):
            with pytest.raises(OSError, match="File too large"):
                there.put(source, "server-0.0-000001.run1.seg")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path / "there") == []


def test_checkpoints_leave_disk_space_for_the_journal(tmp_path, monkeypatch):
    store, disk = stores.store(), types.SimpleNamespace(f_blocks=1 << 20, f_frsize=4096, f_bavail=10_500)
    monkeypatch.setattr(checkpoint_io.os, "fstatvfs", lambda file: disk)
    with checkpoint_io.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file:
        file.append(0, stores.copy_of(store, 0))
        disk.f_bavail = 10_400  # of a million: less than a hundredth
        with pytest.raises(
            OSError, match="No space left on device but 41M, which are reserved for the job's journal"
        ) as full:
            file.append(1, stores.copy_of(store, 1))
    assert full.value.errno == errno.ENOSPC and names(tmp_path) == []
