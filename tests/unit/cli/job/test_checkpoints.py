"""Output of `springtide checkpoints`."""

import json

import pytest

from springtide.checkpoint.format.storage import FolderStore
from springtide.cli.job import checkpoints
from tests.unit.checkpoint import stores

COMPLETE = {
    "at": 1.5,
    "event": "checkpoint",
    "number": 1,
    "outcome": "complete",
    "full": True,
    "bytes": 2**20,
    "seconds": 0.25,
    "samples": 100,
    "begun_at": 1.0,
}
FAILED = {"at": 2.0, "event": "checkpoint", "number": 2, "outcome": "failed", "why": "server-0.0: disk full"}


def test_checkpoint_list_shows_the_outcome_of_each(tmp_path):
    stores.publish(tmp_path, 1, stores.save(stores.store(), tmp_path, 1))
    copied = {"at": 3.0, "event": "uploaded", "number": 1, "outcome": "complete", "url": "s3://bucket/job"}
    found = checkpoints.listed([COMPLETE | {"where": str(tmp_path)}, FAILED, copied])
    assert [(one["number"], one["kind"], one["outcome"], one["kept"]) for one in found] == [
        (1, "full", "complete", True),
        (2, "", "failed", False),
    ]
    assert found[0]["uploaded"] == "s3://bucket/job"
    shown = "\n".join(checkpoints.text("train", found))
    assert "disk full" in shown and " 1M " in shown and "s3://bucket/job" in shown
    assert max(map(len, shown.splitlines()[:2])) <= 80


@pytest.fixture
def saved(tmp_path):
    """A checkpoint in a folder, and the story that tells of it."""
    store = stores.store()
    stores.train(store, range(100))
    stores.publish(tmp_path, 1, stores.save(store, tmp_path, 1))
    return tmp_path / "server-0.0-000001.run1.seg", [COMPLETE | {"where": str(tmp_path)}]


def test_checkpoint_with_a_missing_segment_file_is_damaged(saved):
    segment, story = saved
    assert checkpoints.listed(story)[0]["kept"]
    segment.unlink()
    (one,) = checkpoints.listed(story)
    assert (one["outcome"], one["kept"], one["why"]) == ("damaged", False, f"{segment.name} is missing")
    shown = checkpoints.text("train", [one])
    assert shown[1].split()[-3:] == ["damaged", "no", "no"] and segment.name in shown[2]


def test_verify_finds_altered_bytes_of_the_same_size(saved):
    segment, story = saved
    assert checkpoints.listed(story, verify=True)[0]["verified"]
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert checkpoints.listed(story)[0]["kept"], "sizes alone do not tell"
    (one,) = checkpoints.listed(story, verify=True)
    assert one["outcome"] == "damaged" and not one["kept"] and "its checksum does not match" in one["why"]


def test_verify_exits_with_1_if_a_checkpoint_is_damaged(saved, capsys):
    segment, _ = saved
    assert checkpoints.checkpoints(str(segment.parent), folder="nowhere", as_json=False, verify=True) == 0
    segment.unlink()
    assert checkpoints.checkpoints(str(segment.parent), folder="nowhere", as_json=False, verify=True) == 1
    assert f"{segment.name} is missing" in capsys.readouterr().out


def test_checkpoint_on_server_disks_is_shown_as_such(tmp_path):
    written = stores.save(stores.store(), tmp_path / "disk", 1)._replace(file="server-0/a.seg", node="node-0")
    stores.publish(tmp_path, 1, written)
    (one,) = checkpoints.at_place(FolderStore(tmp_path), verify=True)
    assert one["kept"] and one["apart"] == ["server-0"] and "on the disks of server-0" in one["why"]
    assert " apart " in checkpoints.text("train", [one])[1]


def test_failed_upload_shows_its_reason():
    failed = {
        "at": 3.0,
        "event": "uploaded",
        "number": 1,
        "outcome": "failed",
        "url": "s3://bucket",
        "why": "no access",
    }
    (one,) = checkpoints.listed([COMPLETE, failed])
    assert one["uploaded"] == "" and "no access" in one["why"]


def test_job_without_checkpoints_says_so():
    assert checkpoints.text("train", []) == ["job train has no checkpoints"]


@pytest.mark.parametrize("given", ["file://{}/train", "{}/train", "train"])
def test_checkpoints_in_a_folder_or_at_a_url_are_listed_without_their_job(tmp_path, capsys, monkeypatch, given):
    place = tmp_path / "train"
    monkeypatch.chdir(tmp_path)
    store = stores.store()
    for number in (1, 2):
        stores.train(store, range(100))
        stores.publish(place, number, stores.save(store, place, number, life=f"server-0.{number}"))
    (place / "server-0.2-000002.run1.seg").unlink()
    assert checkpoints.checkpoints(given.format(tmp_path), folder="nowhere", as_json=True) == 0
    *_, last = capsys.readouterr().out.splitlines()
    first, second = json.loads(last)["checkpoints"]
    assert (first["number"], first["outcome"], first["kind"]) == (1, "complete", "full")
    assert first["kept"] and bool(first["uploaded"]) == ("://" in given)
    assert second["outcome"] == "damaged" and "server-0.2-000002.run1.seg is missing" in second["why"]
    assert checkpoints.text("train", [second])[1].split()[:3] == ["2", "-", "-"]


def test_folder_without_checkpoints_may_be_named_like_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    assert not checkpoints.is_place("train") and checkpoints.is_place("./train")


def test_checkpoint_a_server_could_not_restore_is_shown_as_damaged():
    why = "checkpoint 1 in ckpt cannot be used: the image of slot 3 is damaged"
    ready = {"at": 4.0, "event": "ready", "role": "server-0", "checkpoint": 0, "unusable": [why]}
    found = checkpoints.listed([COMPLETE, COMPLETE | {"number": 11}, ready])
    assert [(one["number"], one["outcome"], one["why"]) for one in found] == [(1, "damaged", why), (11, "complete", "")]
