"""Uploads to a URL: complete or absent, only missing files sent, the most recent kept."""

import json
import subprocess
import sys

import msgspec
import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io, storage
from springtide.checkpoint.format.manifest import File, Manifest
from springtide.checkpoint.transfer import upload
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.checkpoint.transfer.upload import shares
from springtide.rpc.messages.checkpoints import CopyOrder, CopyReport
from springtide.server import mirror, recovery
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
def test_uploaded_checkpoint_can_be_restored(run, tmp_path, scheme):
    folder, now = run
    url = f"{scheme}://{tmp_path}/copy"
    done = upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    assert not done.error and done.files == 3 and done.bytes > 0
    found = checkpoint_io.latest(url)
    assert found.manifest.number == 3
    again = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.restore(again, url, 3, range(stores.SLOTS))
    assert stores.contents(again) == now


def test_only_missing_files_are_uploaded_and_old_ones_removed(run, tmp_path):
    folder, _ = run
    url = f"file://{tmp_path}/copy"
    assert upload.upload(folder, url, 1, stores.CLAIM, keep=2).files == 1
    assert upload.upload(folder, url, 2, stores.CLAIM, keep=2).files == 1
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == 1
    assert checkpoint_io.numbers(storage.open_store(url)) == [3, 2]
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=1).files == 0
    assert checkpoint_io.numbers(storage.open_store(url)) == [3]


@pytest.mark.parametrize("scheme", ["file", "memory"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_different_file_of_the_same_name_and_size_is_overwritten(run, tmp_path, scheme, when):
    folder, _ = run
    url, name = f"{scheme}://{tmp_path}/copy", "server-0.0-000001.run1.seg"
    there, size = storage.UrlStore(url), (folder / name).stat().st_size
    if when == "after":
        upload.upload(folder, url, 2, stores.CLAIM, keep=2)
    there.write(name, bytes(size))
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == (3 if when == "before" else 2)
    assert there.read(name) == (folder / name).read_bytes()
    found = checkpoint_io.latest(url)
    assert found.manifest.number == 3 and not found.troubles


def test_url_of_another_run_is_left_unchanged(run, tmp_path):
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
    assert checkpoint_io.latest(url).manifest.run == "run2"
    with pytest.raises(errors.BadInput, match="was taken over by run run2"):
        upload.upload(folder, url, 3, stores.CLAIM, keep=2)
    assert checkpoint_io.latest(url).manifest.run == "run2"


def test_manifest_of_another_run_in_the_folder_is_not_uploaded(run, tmp_path):
    folder, _ = run
    with pytest.raises(errors.BadInput, match="the checkpoint is of run run1 of job 'test', but this is run run2"):
        upload.upload(folder, f"file://{tmp_path}/copy", 3, RunClaim(run="run2", job="test"), keep=2)


def test_interrupted_upload_is_not_visible(run, tmp_path, monkeypatch):
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
    found = checkpoint_io.latest(url)
    assert found.manifest.number == 1 and not found.troubles
    (tmp_path / "copy" / "server-0.0-000003.run1.seg.part").write_bytes(b"torn")
    assert upload.upload(folder, url, 3, stores.CLAIM, keep=2).files == 1
    assert checkpoint_io.latest(url).manifest.number == 3
    assert not list((tmp_path / "copy").glob("*.part"))


def test_upload_process_prints_its_result_as_one_line(run, tmp_path):
    folder, _ = run
    command = [sys.executable, "-m", "springtide.checkpoint.transfer.upload", "upload", str(folder)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    claim = msgspec.json.encode(stores.CLAIM).decode()
    with subprocess.Popen([*command, f"file://{tmp_path}/copy", "3", "2", claim], **pipes) as process:
        said = json.loads(process.stdout.read())
        assert process.wait() == 0
    assert said["number"] == 3 and not said["error"]
    with subprocess.Popen([*command, "nonsense://there", "3", "2", claim], **pipes) as process:
        assert "nonsense" in json.loads(process.stdout.read())["error"]
        assert process.wait() == 1


FILES = (
    ("server-0/server-0.0-000001.run1.seg", 4),
    ("server-0/server-0.0-000002.run1.seg", 4),
    ("server-0/gone.seg", 4),
)


def fill(folder):
    (folder / "server-0").mkdir(parents=True)
    (folder / FILES[0][0]).write_bytes(b"0001")
    (folder / FILES[1][0]).write_bytes(b"0002")
    return folder


def test_only_files_not_sent_before_are_uploaded(tmp_path):
    folder, url = fill(tmp_path / "disk"), f"file://{tmp_path}/copy"
    assert upload.send_part(folder, url, FILES[:1]) == upload.Uploaded(files=1, bytes=4)
    assert upload.send_part(folder, url, FILES) == upload.Uploaded(files=1, bytes=4, lacks=(FILES[2][0],))
    assert upload.send_part(folder, url, FILES) == upload.Uploaded(lacks=(FILES[2][0],))


@pytest.mark.parametrize("there", [b"0009", b"000", b""])
def test_different_uploaded_file_of_any_size_is_overwritten(tmp_path, there):
    folder, url = fill(tmp_path / "disk"), f"file://{tmp_path}/copy"
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "server-0.0-000001.run1.seg"
    copy.write_bytes(there)
    assert upload.send_part(folder, url, FILES[:1]) == upload.Uploaded(files=1, bytes=4)
    assert copy.read_bytes() == b"0001"
    copy.unlink()
    copy.write_bytes(b"0009")
    assert upload.send_part(folder, url, FILES[:1]) == upload.Uploaded(files=1, bytes=4)
    assert copy.read_bytes() == b"0001"


def test_server_uploads_by_a_process_and_reports_the_result(tmp_path):
    folder = fill(tmp_path / "disk")
    said = mirror.upload_part(folder, CopyOrder(7, f"file://{tmp_path}/copy", FILES))
    assert said == CopyReport(7, 2, 8, (FILES[2][0],))
    command = [
        sys.executable,
        "-m",
        "springtide.checkpoint.transfer.upload",
        "part",
        str(folder),
        "nonsense://there",
        "[]",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert "nonsense" in json.loads(process.stdout.read())["error"] and process.wait() == 1


def manifest(*files, apart):
    return Manifest(
        job="j", run="run1", number=1, begun_at=0.0, completed_at=0.0, slots=0, seed=0, files=files, apart=apart
    )


OWN = File("server-0/server-0.0-000001.run1.seg", "server-0.0", 10, "server-1/server-0.0-000001.run1.seg")
ALONE = File("server-2/server-2.0-000001.run1.seg", "server-2.0", 20)
BESIDE = File("server-3.0-000001.run1.seg", "server-3.0", 30)
HALF = File("server-0/server-0.0-000002.run1.seg", "server-0.0", 40, "server-4/server-0.0-000002.run1.seg")
APART = {"server-0": "a", "server-1": "b", "server-2": "b"}


def test_each_server_uploads_its_own_files():
    found = shares(manifest(OWN, ALONE, BESIDE, HALF, apart=APART), ())
    assert found.of == {"server-0": ((OWN.name, 10),), "server-2": ((ALONE.name, 20),)} and not found.missing


def test_lost_file_is_uploaded_by_the_buddy_or_reported_missing():
    found = shares(manifest(OWN, ALONE, apart=APART), {OWN.name})
    assert found.of == {"server-1": ((OWN.mirror, 10),), "server-2": ((ALONE.name, 20),)}
    found = shares(manifest(OWN, ALONE, apart=APART), {OWN.name, OWN.mirror, ALONE.name})
    assert found.of == {} and found.missing == (OWN.name, ALONE.name)


def test_checkpoint_survives_a_host_if_shared_or_on_two_machines():
    assert manifest(BESIDE, apart={}).outlasts_a_host
    assert manifest(OWN, HALF, BESIDE, apart=APART).outlasts_a_host
    assert not manifest(OWN, ALONE, apart=APART).outlasts_a_host
    assert not manifest(OWN, apart={"server-0": "a", "server-1": "a"}).outlasts_a_host
