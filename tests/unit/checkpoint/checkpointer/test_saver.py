"""Storage shows only complete saves, keeps the newest, and removes leftovers."""

import pathlib

import pytest

from springtide import errors
from springtide.checkpoint.checkpointer import saver
from springtide.checkpoint.checkpointer.saver import StateStore, stem


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> StateStore:
    storage = StateStore(str(tmp_path / "saves") if request.param == "file" else f"memory://{tmp_path}")
    storage.place.make()
    return storage


def published(storage: StateStore, tmp_path: pathlib.Path, sequence: int, step: int) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(100))
    storage.publish(image, saver.ImageHead(0, 100, sequence, step, 0))


def test_saves_are_listed_newest_first_and_thinned_out(storage: StateStore, tmp_path: pathlib.Path) -> None:
    for sequence, step in ((1, 50), (2, 10), (3, 20)):
        published(storage, tmp_path, sequence, step)
    storage.keep_newest(2)

    assert [manifest.step for manifest in storage.manifests()] == [20, 10]
    assert storage.place.size(f"{stem(1, 50)}.state") is None


def test_save_without_a_manifest_is_ignored_and_removed(storage: StateStore, tmp_path: pathlib.Path) -> None:
    published(storage, tmp_path, 1, 5)
    for name in (f"{stem(2, 6)}.state", f"{stem(2, 6)}.json.part", "notes.txt"):
        storage.place.write(name, b"half")
    assert [manifest.step for manifest in storage.manifests()] == [5]

    storage.clear_leftovers()
    assert sorted(storage.place.names()) == [f"{stem(1, 5)}.json", f"{stem(1, 5)}.state", "notes.txt"]


def test_unknown_protocol_and_unwritable_folder_are_reported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadInput, match="Protocol not known: nope"):
        StateStore("nope://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadInput, match="Choose a folder"):
        StateStore(str(tmp_path / "file" / "below")).place.make()
