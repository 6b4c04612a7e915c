"""What no kept manifest needs is dropped; what is being written stays."""

import errno
import resource
import types

import pytest

from springtide.checkpoint.format import reader, segments, writer
from springtide.checkpoint.format.storage import FolderStore, UrlStore
from tests.unit.checkpoint import stores


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_goes_with_the_last_manifest_that_names_it(tmp_path):
    store = stores.store()
    stores.train(store, range(100))
    cut = store.cut()
    first = stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    second = stores.publish(tmp_path, 2, stores.save(store, tmp_path, 2, previous=first, cut=cut), previous=first)
    third = stores.publish(tmp_path, 3, stores.save(store, tmp_path, 3))
    assert writer.drop_unneeded(FolderStore(tmp_path), [second, third]) == ["manifest-000001.ckpt"]
    assert "server-0.0-000001.run1.seg" in names(tmp_path)  # the second builds on it
    assert set(writer.drop_unneeded(FolderStore(tmp_path), [third])) == {
        "manifest-000002.ckpt",
        "server-0.0-000001.run1.seg",
        "server-0.0-000002.run1.seg",
    }
    assert reader.latest(str(tmp_path)).manifest == third


def test_what_is_being_written_and_what_is_not_ours_stay(tmp_path):
    store = stores.store()
    first = stores.publish(tmp_path, 5, stores.save(store, tmp_path, 5))
    for name in ("server-1.0-000006.run1.part", "server-1.0-000006.run1.seg", "notes.txt"):
        (tmp_path / name).write_text("")
    for name in ("server-1.0-000004.run1.part", "server-1.0-000003.run1.seg", "manifest-000003.ckpt.part"):
        (tmp_path / name).write_text("")
    gone = writer.drop_unneeded(FolderStore(tmp_path), [first])
    assert set(gone) == {"server-1.0-000004.run1.part", "server-1.0-000003.run1.seg", "manifest-000003.ckpt.part"}
    assert "notes.txt" in names(tmp_path) and "server-1.0-000006.run1.part" in names(tmp_path)


def test_a_file_has_no_name_before_it_is_whole(tmp_path):
    store = stores.store()
    with segments.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file:
        file.append(0, stores.image_of(store, 0))
        assert names(tmp_path) == ["server-0.0-000001.run1.part"]
    assert names(tmp_path) == []


def test_a_full_disk_is_an_error_with_its_number_and_leaves_nothing(tmp_path):
    def full(fd, at):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        pytest.raises(OSError, match="No space left"),
        segments.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file,
    ):
        file.append(0, full)
    assert names(tmp_path) == []


def test_the_store_says_what_the_system_says_when_it_cannot_write():
    store = stores.store()
    with open("/dev/full", "wb") as file, pytest.raises(OSError) as caught:
        stores.image_of(store, 0)(file.fileno(), 0)
    assert caught.value.errno == errno.ENOSPC


def test_a_place_in_memory_takes_and_gives_files():
    place = UrlStore("memory://springtide-test-places/here")
    assert place.names() == [] and place.size("a") is None
    place.write("a", b"0123456789")
    assert place.names() == ["a"] and place.size("a") == 10
    assert place.read("a", 2, 3) == b"234" and place.read("a", 8) == b"89"
    place.remove("a")
    place.remove("a")
    assert place.names() == []


def test_of_one_that_was_given_up_nothing_stays_but_what_others_need(tmp_path):
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
    gone = writer.drop_unneeded(FolderStore(tmp_path), [first], given_up=6)
    assert gone[0] == "manifest-000006.ckpt", "a manifest never names files that are gone"
    assert names(tmp_path) == [*before, "server-0.0-000007.run1.part"]


@pytest.mark.parametrize("place", [FolderStore, lambda path: UrlStore(f"file://{path}")], ids=["folder", "url"])
def test_what_a_disk_could_not_take_leaves_nothing_there(tmp_path, place):
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


def test_checkpoints_leave_the_last_of_a_disk_to_the_journal(tmp_path, monkeypatch):
    store, disk = stores.store(), types.SimpleNamespace(f_blocks=1 << 20, f_frsize=4096, f_bavail=10_500)
    monkeypatch.setattr(segments.os, "fstatvfs", lambda file: disk)
    with segments.SegmentWriter(tmp_path, "server-0.0", 1, run=stores.RUN) as file:
        file.append(0, stores.image_of(store, 0))
        disk.f_bavail = 10_400  # of a million: less than a hundredth
        with pytest.raises(OSError, match="No space left on device but 41M, which are for the job's journal") as full:
            file.append(1, stores.image_of(store, 1))
    assert full.value.errno == errno.ENOSPC and names(tmp_path) == []
