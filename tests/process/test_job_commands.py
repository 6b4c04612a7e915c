"""Inspect and control a running job from other commands."""

import contextlib
import io
import json
import os
import signal

import pytest

from springtide.cli import app
from tests import waiting
from tests.process import running

pytestmark = pytest.mark.process


def command(folder, *arguments):
    """Run a command to its end: exit code, lines."""
    with running.springtide(*arguments, folder=folder) as other:
        return other.finish()


def newest_status(folder):
    """The status of the newest job; looked at often, so not by a process of its own each time."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        assert app.main(["status", "--json"]) == 0, said.getvalue()
    return json.loads(said.getvalue().splitlines()[-1])


def usage_of(folder):
    """Usage of each member, once known for all."""
    members = newest_status(folder)["members"]
    return [member["usage"] for member in members] if all("usage" in member for member in members) else None


def test_running_job_is_found_shown_and_stopped_by_commands(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", "--workers", "2", "--json", folder=tmp_path) as job:
        job.wait_for("training")
        waiting.until(lambda: {"worker-0", "worker-1"} <= job.roles().keys(), "both workers have joined")
        code, out = command(tmp_path, "status", "--json")
        assert code == 0 and len(out) == 1, out
        seen = json.loads(out[-1])
        assert seen["running"] and "exit_code" not in seen
        assert {member["role"]["kind"] for member in seen["members"]} == {"server", "worker"}
        usage = waiting.until(lambda: usage_of(tmp_path), "the agent has looked at every member")
        assert all(each["memory"] > 1 << 20 for each in usage) and any(each["cpu_s"] > 0 for each in usage)
        code, out = command(tmp_path, "stop", "train", "--wait")
        assert code == 0 and out == ["job train: draining, workers finish their current batch", "job train: stopped"]
        code, out = job.finish()
    assert code == 130 and "stopped by `springtide stop`" in out[0]
    code, after = command(tmp_path, "status", "train", "--json")
    assert json.loads(after[-1])["samples"] == json.loads(out[-1])["samples"]
    assert "phase=draining" in "\n".join(command(tmp_path, "events")[1])


def test_job_killed_with_its_agent_is_reported_as_killed(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        job.process.kill()
        job.finish()
    code, out = command(tmp_path, "status")
    assert code == 0 and out[0].startswith("the command that ran the job was killed, which ended the job")
    assert command(tmp_path, "stop")[0] == 2


@pytest.mark.extra("cryptography")
def test_workers_are_added_and_removed_while_the_job_trains_by_tls(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", "--json", "--workers", "1", "--tls", folder=tmp_path) as job:
        job.wait_for("training")
        certificates = tmp_path / ".springtide/runs/train/tls"
        assert (certificates / "master" / "tls.key").stat().st_mode & 0o077 == 0
        assert command(tmp_path, "scale", "--workers", "3")[0] == 0
        for rank in (1, 2):
            came = running.wait_for_event(job, "joined", role=f"worker-{rank}")
        os.kill(came["pid"], signal.SIGSTOP)  # in the middle of its beginning: nobody waits for it
        before = newest_status(tmp_path)["samples"]
        waiting.until(lambda: newest_status(tmp_path)["samples"] > before, "the others train on")
        os.kill(came["pid"], signal.SIGCONT)
        assert command(tmp_path, "scale", "train", "--workers", "1", "--json")[0] == 0
        for rank in (1, 2):
            assert "status 0" in running.wait_for_event(job, "exited", role=f"worker-{rank}")["how"]
        seen = newest_status(tmp_path)
        assert (seen["phase"], seen["roles"]["workers"]["alive"], seen["roles"]["workers"]["wanted"]) == (
            "running",
            1,
            1,
        )
        told = " ".join(command(tmp_path, "explain")[1])
        assert "worker-1" in told and "worker-2" in told
        job.send(signal.SIGINT)
        code, out = job.finish()
    assert code == 130 and json.loads(out[-1])["data"]["shards_total"] == 5 * 10**10, (
        "the shards of the whole are shown"
    )
    assert not certificates.exists()


def test_worker_that_ignores_stop_is_killed_after_the_grace_period(tmp_path):
    running.script(
        tmp_path, running.loop(body="print('training', flush=True)\nimport threading; threading.Event().wait()")
    )
    with running.springtide("run", "train.py", "--grace", "1", folder=tmp_path) as job:
        job.wait_for("training")
        assert command(tmp_path, "stop", "--wait")[0] == 0
        code, out = job.finish()
    assert code == 130 and "workers did not stop within 1 s and were killed" in out[0]
