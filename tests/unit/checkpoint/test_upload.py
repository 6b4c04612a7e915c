"""Copies at a URL: whole or not there, only what is missing is sent, the last few stay."""

import json
import subprocess
import sys

import pytest

from springtide.checkpoint import places, reader, upload
from springtide.embedding import restoring
from tests.unit.checkpoint import stores


@pytest.fixture
def run(tmp_path):
    """A folder with three checkpoints, each after the one before."""
    folder, store, previous, cut = tmp_path / "run", stores.store(), None, 0
    for number in (1, 2, 3):
        stores.train(store, range(number * 100))
        following = store.cut()
        written = stores.save(store, folder, number, previous=previous, cut=cut)
        previous, cut = stores.publish(folder, number, written, previous=previous), following
    return folder, stores.contents(store)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_what_is_copied_can_be_restored(run, tmp_path, scheme):
    folder, now = run
    url = f"{scheme}://{tmp_path}/copy"
    done = upload.upload(folder, url, 3, keep=2)
    assert not done.error and done.files == 3 and done.bytes > 0
    found = reader.latest(url)
    assert found.manifest.number == 3
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    restoring.restore(again, url, 3, range(stores.SLOTS))
    assert stores.contents(again) == now


def test_only_what_is_missing_is_sent_and_old_ones_go(run, tmp_path):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    assert upload.upload(folder, url, 1, keep=2).files == 1
    assert upload.upload(folder, url, 2, keep=2).files == 1
    assert upload.upload(folder, url, 3, keep=2).files == 1
    assert reader.numbers(places.place_of(url)) == [3, 2]
    assert upload.upload(folder, url, 3, keep=1).files == 0
    assert reader.numbers(places.place_of(url)) == [3]


def test_an_upload_that_ends_half_way_is_not_seen(run, tmp_path, monkeypatch):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    upload.upload(folder, url, 1, keep=2)
    sent = []

    def put(self, source, name):
        if sent:
            raise OSError("killed")
        sent.append(name)
        whole(self, source, name)

    whole = places.Remote.put
    monkeypatch.setattr(places.Remote, "put", put)
    with pytest.raises(OSError, match="killed"):
        upload.upload(folder, url, 3, keep=2)
    monkeypatch.undo()
    found = reader.latest(url)
    assert found.manifest.number == 1 and not found.troubles
    (tmp_path / "copy" / "server-0.0-000003.seg.part").write_bytes(b"torn")
    assert upload.upload(folder, url, 3, keep=2).files == 1
    assert reader.latest(url).manifest.number == 3
    assert not list((tmp_path / "copy").glob("*.part"))


def test_the_process_says_in_a_line_what_became_of_it(run, tmp_path):
    folder, _ = run
    command = [sys.executable, "-m", "springtide.checkpoint.upload", str(folder)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([*command, f"file://{tmp_path}/copy", "3", "2"], **pipes) as process:
        said = json.loads(process.stdout.read())
        assert process.wait() == 0
    assert said["number"] == 3 and not said["error"]
    with subprocess.Popen([*command, "nonsense://there", "3", "2"], **pipes) as process:
        assert "nonsense" in json.loads(process.stdout.read())["error"]
        assert process.wait() == 1
