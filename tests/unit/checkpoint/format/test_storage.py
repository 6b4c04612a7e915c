"""A store behind a URL: whatever its library raises is told as one error, and nobody asks it for folders in vain."""

import numpy as np
import pytest

from springtide import errors
from springtide.checkpoint.format import storage
from springtide.checkpoint.format.storage import UrlStore


class NoCredentials(Exception):
    """As a store's own library has them: no OSError, and of a module that nobody here knows."""


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
def test_what_a_store_refuses_is_told_with_its_url_and_its_words(monkeypatch, call, error):
    with pytest.raises(
        errors.StoreFailed, match=rf"s3://keep/ctr: {error}\. Check the bucket, the credentials"
    ) as told:
        CALLS[call](refused(monkeypatch, error))
    assert isinstance(told.value, OSError) and told.value.__cause__ is error


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_there_can_be_asked_for_but_not_written_to(monkeypatch, call):
    place = refused(monkeypatch, FileNotFoundError("The specified bucket does not exist"))
    found = {"names": [], "size": None, "remove": None}
    if call in found:
        assert CALLS[call](place) == found[call]
        return
    writes = call in ("write", "create")
    with pytest.raises(errors.StoreFailed if writes else FileNotFoundError, match="does not exist"):
        CALLS[call](place)


def test_a_mistake_of_the_one_who_writes_stays_what_it_is():
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


def test_small_runs_of_a_stores_file_are_fetched_together(monkeypatch):
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
