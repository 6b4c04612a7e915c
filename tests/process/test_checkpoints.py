"""Checkpoints over real processes: a stopped job resumes with exact counts."""

import contextlib
import json
import pathlib
import signal

import numpy as np
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.testing.cluster import LocalCluster
from tests import waiting
from tests.process import counting, running

pytestmark = pytest.mark.process

SEED = 20261115


def checkpoints(folder, run):
    return [event for event in running.events(folder, run) if event["event"] == "checkpoint"]


def test_stopped_job_resumes_with_other_numbers_of_servers_and_workers(tmp_path):
    print("seed", SEED)
    ids = counting.draw(np.random.default_rng(SEED), 6000)
    counting.write(tmp_path, ids)
    script = ["--", ".", "2", "20"]
    several = ["run", "count.py", "--workers", "2", "--servers", "2", "--checkpoint-every", "0.5"]
    with running.springtide(*several, *script, "0.3", folder=tmp_path) as job:
        waiting.until(
            lambda: [e for e in checkpoints(tmp_path, "count") if e["outcome"] == "complete" and e["samples"] > 200],
            "a checkpoint with a part of the data",
        )
        job.send(signal.SIGINT)
        code, _ = job.finish()
    assert code == 130
    *_, last = checkpoints(tmp_path, "count")
    ended = json.loads((tmp_path / ".springtide/runs/count/events.jsonl").read_text().splitlines()[-1])["status"]
    assert last["outcome"] == "complete" and last["samples"] == ended["samples"] < 12_000
    assert not (tmp_path / "counts.npz").exists()
    others = ["run", "count.py", "--workers", "1", "--servers", "3", "--resume", ".springtide/runs/count"]
    with running.springtide(*others, *script, "0", folder=tmp_path) as job:
        job.wait_for("continuing from checkpoint")
        code, out = job.finish()
    assert code == 0, out
    assert counting.differences(tmp_path, ids, epochs=2, batch=20) == {}


def test_job_that_cannot_write_checkpoints_reports_it_and_continues(tmp_path):
    running.script(tmp_path, running.loop())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "train").write_text("not a folder")
    with running.springtide("run", "train.py", "--checkpoint-dir", "full", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, out
    told = checkpoints(tmp_path, "train")
    assert {event["outcome"] for event in told} == {"failed", "skipped"}
    assert "cannot write to" in told[0]["why"] and str(tmp_path / "full" / "train") in told[0]["why"]


def uploader(url):
    """The process that copies a checkpoint there just now, if one does."""
    for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command, environment = each.read_bytes(), (each.parent / "environ").read_bytes()
        except OSError:
            continue
        if b"springtide.checkpoint.transfer.upload" in command and url.encode() in environment:
            return int(each.parent.name)
    return None


def kill_uploader(url):
    """Kill the upload process if there is one; the event log tells whether it was in time."""
    with contextlib.suppress(ProcessLookupError):
        if pid := uploader(url):
            running.kill(pid)


def copies(job, outcome):
    """Numbers of the checkpoints of which that became."""
    return [event["number"] for event in job.story if event["event"] == "uploaded" and event["outcome"] == outcome]


def test_killed_upload_leaves_the_previous_copy_and_the_next_completes(tmp_path):
    script = tmp_path / running.script(tmp_path, running.loop(body="import time; time.sleep(0.02)", samples=200_000))
    url = str(tmp_path / "copies")
    rules = CheckpointRules(every_s=0.2, url=url, upload_every_s=0.3)
    spec = JobSpec(name="train", servers=1, workers=1, slots=64, heartbeat_s=0.2, checkpoints=rules)
    with LocalCluster(script, spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda _: copies(job, "complete"))
        job.until(lambda _: copies(job, "failed") or kill_uploader(url))  # one may be through before it is hit
        lost = copies(job, "failed")[0]
        left = checkpoint_io.latest(url)
        assert left.manifest is not None and not left.troubles
        job.until(
            lambda status: "could not be copied" in status.checkpoints.trouble or status.checkpoints.uploaded > lost
        )
        job.until(lambda status: status.checkpoints.uploaded > lost and not status.checkpoints.trouble)
        story = [event for event in job.story if event["event"] == "uploaded"]
        before = story[: story.index(next(event for event in story if event["number"] == lost))]
        assert left.manifest.number >= before[-1]["number"]
    assert "before it reported a result" in next(str(event["why"]) for event in story if event["outcome"] == "failed")
