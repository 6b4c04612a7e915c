"""Stores behind a URL: library errors become one error type, and folders are not listed needlessly."""

import threading

import fsspec
import numpy as np
import pytest

from springtide import errors
from springtide.checkpoint.format import storage
from springtide.checkpoint.format.storage import UrlStore
from springtide.checkpoint.transfer import upload
from tests.unit.checkpoint import stores


class NoCredentials(Exception):
    """An error of a store's library: no OSError, and of an unknown module."""


class Refusing:
    protocol = ("s3", "s3a")

    def __init__(self, error):
        self.error = error

    def invalidate_cache(self):
        pass

    def __getattr__(self, name):
        def refuse(*arguments, **options):
            assert name != "makedirs", "an object store has no folders: this would ask for a bucket"
            raise self.error

        return refuse


def refused(monkeypatch, error):
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (Refusing(error), "keep/ctr"))
    return UrlStore("s3://keep/ctr")


CALLS = {
    "names": lambda place: place.names(),
    "size": lambda place: place.size("a"),
    "read": lambda place: place.read("a"),
    "open": lambda place: place.open("a"),
    "write": lambda place: place.write("a", b"1"),
    "create": lambda place: place.create("a").__enter__(),
    "remove": lambda place: place.remove("a"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [NoCredentials("Unable to locate credentials"), PermissionError("Access Denied")])
def test_storage_errors_are_reported_with_url_and_message(monkeypatch, call, error):
    with pytest.raises(
        errors.StoreFailed, match=rf"s3://keep/ctr: {error}\. Check the bucket, the credentials"
    ) as told:
        CALLS[call](refused(monkeypatch, error))
    assert isinstance(told.value, OSError) and told.value.__cause__ is error


@pytest.mark.parametrize("call", CALLS)
def test_missing_storage_object_can_be_queried_but_not_written(monkeypatch, call):
    place = refused(monkeypatch, FileNotFoundError("The specified bucket does not exist"))
    found = {"names": [], "size": None, "remove": None}
    if call in found:
        assert CALLS[call](place) == found[call]
        return
    writes = call in ("write", "create")
    with pytest.raises(errors.StoreFailed if writes else FileNotFoundError, match="does not exist"):
        CALLS[call](place)


def test_error_of_the_writer_is_passed_on():
    with pytest.raises(ZeroDivisionError), UrlStore("memory://places").create("a"):
        raise ZeroDivisionError
    assert UrlStore("memory://places").names() == []


class Counted:
    protocol = "s3"

    def __init__(self, content):
        self.content, self.asked = content, 0

    def cat_file(self, path, start, end):
        self.asked += 1
        return self.content[start:end]

    def rm_file(self, path):
        self.content = self.content[::-1]


def test_small_ranges_of_a_stored_file_are_fetched_together(monkeypatch):
    content = np.random.default_rng(5).bytes(2 * storage.BLOCK + 700)
    store = Counted(content)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "keep/ctr"))
    place = UrlStore("s3://keep/ctr")
    runs = [(at, 4000) for at in range(0, len(content), 4000)]  # the last ends beyond the file's end
    assert [place.read("a", *run) for run in runs] == [content[at : at + 4000] for at, _ in runs]
    assert store.asked == 3
    assert place.read("a", 5, storage.BLOCK) == content[5 : 5 + storage.BLOCK] and store.asked == 4
    place.remove("b")
    assert place.read("a", 0, 9) == content[::-1][:9]  # what was kept is not believed after a change


class Clock:
    """A clock that advances when someone sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def rest(self, seconds):
        self.now += seconds


def test_silent_store_times_out_and_an_answer_resets_it():
    clock = Clock()
    answers = storage.StoreAnswers(clock)
    clock.rest(600)
    assert not answers.trouble()
    clock.rest(1)
    assert "not responded for 600 s" in answers.trouble()
    answers.note()
    assert not answers.trouble()


def test_every_received_chunk_resets_the_store_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CHUNK", 10)
    (tmp_path / "file").write_bytes(b"x" * 35)
    answers = []
    monkeypatch.setattr(storage.ANSWERS, "note", lambda: answers.append(1))
    storage.UrlStore(f"memory://{tmp_path}/chunks").put(tmp_path / "file", "file")
    assert len(answers) == 5  # four chunks, and the file as a whole


def test_hanging_upload_is_detected(tmp_path, monkeypatch):
    folder, store, clock = tmp_path / "run", stores.store(), Clock()
    stores.train(store, range(100))
    stores.publish(folder, 1, stores.save(store, folder, 1))
    one, hangs, answers = storage.StoreAnswers(clock), threading.Event(), threading.Event()
    monkeypatch.setattr(storage, "ANSWERS", one)

    def open_file(self, path, mode="rb", **_):
        hangs.set()
        assert answers.wait(60)
        raise OSError("the store is back, and refuses")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "open", open_file)

    def copy():
        with pytest.raises(OSError, match="refuses"):
            upload.upload(folder, f"memory://{tmp_path}/hangs", 1, stores.CLAIM, keep=1)

    thread = threading.Thread(target=copy)
    thread.start()
    assert hangs.wait(60) and not one.trouble()
    clock.rest(601)
    assert "can be reached" in one.trouble()
    answers.set()
    thread.join()
