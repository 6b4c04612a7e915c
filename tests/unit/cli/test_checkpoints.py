"""What `springtide checkpoints` and `--resume` say."""

import pytest

from springtide import errors
from springtide.cli import checkpoints, keeping
from tests.unit.checkpoint import stores

COMPLETE = {"at": 1.5, "event": "checkpoint", "number": 1, "outcome": "complete", "full": True, "bytes": 2**20,
            "seconds": 0.25, "samples": 100, "begun_at": 1.0}  # fmt: skip
FAILED = {"at": 2.0, "event": "checkpoint", "number": 2, "outcome": "failed", "why": "server-0.0: disk full"}


def test_each_checkpoint_has_its_line_with_what_became_of_it(tmp_path):
    (tmp_path / "manifest-000001.ckpt").write_bytes(b"")
    copied = {"at": 3.0, "event": "uploaded", "number": 1, "outcome": "complete", "url": "s3://bucket/job"}
    found = checkpoints.listed([COMPLETE | {"where": str(tmp_path)}, FAILED, copied])
    assert [(one["number"], one["kind"], one["outcome"], one["kept"]) for one in found] == [
        (1, "full", "complete", True), (2, "", "failed", False),
    ]  # fmt: skip
    assert found[0]["uploaded"] == "s3://bucket/job"
    shown = "\n".join(checkpoints.text("train", found))
    assert "disk full" in shown and " 1M " in shown and "s3://bucket/job" in shown
    assert max(map(len, shown.splitlines()[:2])) <= 80


def test_a_copy_that_failed_says_why():
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


def test_a_job_without_any_says_so():
    assert checkpoints.text("train", []) == ["job train has no checkpoints"]


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_gone_on_from(tmp_path, capsys):
    store = stores.store()
    for number in (1, 2):
        stores.train(store, range(10))
        stores.publish(tmp_path, number, stores.save(store, tmp_path, number))
    path = tmp_path / "server-0.0-000002.seg"
    path.write_bytes(path.read_bytes()[:-3])
    found = keeping.find_checkpoint(str(tmp_path))
    assert found.number == 1
    said = capsys.readouterr().err
    assert "checkpoint 2" in said and "torn" in said and "going on from checkpoint 1" in said
    rules = keeping.rules(every_s=None, folder="", resume=str(tmp_path), resumed=found)
    assert (rules.resume, rules.resume_number, rules.numbers_after, rules.every_s) == (str(tmp_path), 1, 2, 30.0)


def test_nothing_to_go_on_from_is_an_error(tmp_path):
    with pytest.raises(errors.MissingFile, match="no checkpoint there"):
        keeping.find_checkpoint(str(tmp_path))


def test_a_path_as_a_url_means_files_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert keeping.rules(every_s=None, folder="", url="copies").url == f"file://{tmp_path}/copies"
