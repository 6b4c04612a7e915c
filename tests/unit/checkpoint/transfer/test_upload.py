"""Copies at a URL: whole or not there, only what is missing is sent, the last few stay."""

import json
import subprocess
import sys

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format import reader, storage
from springtide.checkpoint.transfer import upload
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.server import restore
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
    done = upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    assert not done.error and done.files == 3 and done.bytes > 0
    found = reader.latest(url)
    assert found.manifest.number == 3
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    restore.restore(again, url, 3, range(stores.SLOTS))
    assert stores.contents(again) == now


def test_only_what_is_missing_is_sent_and_old_ones_go(run, tmp_path):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    assert upload.upload(folder, url, 1, stores.CLAIM, keep=2).files == 1
    assert upload.upload(folder, url, 2, stores.CLAIM, keep=2).files == 1
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == 1
    assert reader.numbers(storage.open_store(url)) == [3, 2]
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=1).files == 0
    assert reader.numbers(storage.open_store(url)) == [3]


@pytest.mark.parametrize("scheme", ["file", "memory"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_file_of_the_same_name_and_size_is_written_over(run, tmp_path, scheme, when):
    folder, _ = run
    url, name = f"{scheme}://{tmp_path}/copy", "server-0.0-000001.run1.seg"
    there, size = storage.UrlStore(url), (folder / name).stat().st_size
    if when == "after":
        upload.upload(folder, url, 2, stores.CLAIM, keep=2)
    there.write(name, bytes(size))
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == (3 if when == "before" else 2)
    assert there.read(name) == (folder / name).read_bytes()
    found = reader.latest(url)
    assert found.manifest.number == 3 and not found.troubles


def test_a_url_that_is_another_runs_is_left_as_it_is(run, tmp_path):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    store, other = stores.store(), tmp_path / "other"
    stores.publish(other, 4, stores.save(store, other, 4, run="run2"), run="run2")
    with pytest.raises(errors.BadInput, match=r"checkpoints of another run.*--checkpoint-url"):
        upload.upload(other, url, 4, RunClaim(run="run2", job="test"), keep=2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == before
    upload.upload(other, url, 4, RunClaim(run="run2", job="test", resumed_run=stores.RUN), keep=2)
    assert reader.latest(url).manifest.run == "run2"
    with pytest.raises(errors.BadInput, match="was taken over by run run2"):
        upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    assert reader.latest(url).manifest.run == "run2"


def test_a_manifest_of_another_run_in_the_folder_is_not_copied(run, tmp_path):
    folder, _ = run
    with pytest.raises(errors.BadInput, match="it is of run run1 of job 'test'; this is run run2"):
        upload.upload(folder, f"file://{tmp_path}/copy", 3, RunClaim(run="run2", job="test"), keep=2)


def test_an_upload_that_ends_half_way_is_not_seen(run, tmp_path, monkeypatch):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    upload.upload(folder, url, 1, stores.CLAIM, keep=2)
    sent = []

    def put(self, source, name, length):
        if sent:
            raise OSError("killed")
        sent.append(name)
        whole(self, source, name, length)

    whole = storage.UrlStore.put
    monkeypatch.setattr(storage.UrlStore, "put", put)
    with pytest.raises(OSError, match="killed"):
        upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    monkeypatch.undo()
    found = reader.latest(url)
    assert found.manifest.number == 1 and not found.troubles
    (tmp_path / "copy" / "server-0.0-000003.run1.seg.part").write_bytes(b"torn")
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == 1
    assert reader.latest(url).manifest.number == 3
    assert not list((tmp_path / "copy").glob("*.part"))


def test_the_process_says_in_a_line_what_became_of_it(run, tmp_path):
    folder, _ = run
    command = [sys.executable, "-m", "springtide.checkpoint.transfer.upload", str(folder)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    claim = msgspec.json.encode(stores.CLAIM).decode()
    with subprocess.Popen([*command, f"file://{tmp_path}/copy", "3", "2", claim], **pipes) as process:
        said = json.loads(process.stdout.read())
        assert process.wait() == 0
    assert said["number"] == 3 and not said["error"]
    with subprocess.Popen([*command, "nonsense://there", "3", "2", claim], **pipes) as process:
        assert "nonsense" in json.loads(process.stdout.read())["error"]
        assert process.wait() == 1
