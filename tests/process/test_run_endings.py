"""How a job ends: Ctrl-C, kill -9 of a role or of the agent. No process is left."""

import os
import pathlib
import signal
import time

import pytest

from springtide.rpc.transport import addresses
from tests import waiting
from tests.process import running

pytestmark = pytest.mark.process


def joined(job, names):
    """Wait until these roles have joined; their process ids."""
    waiting.until(lambda: names <= job.roles().keys(), f"{names} have joined")
    return job.roles()


def test_ctrl_c_drains_the_job(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", "--workers", "2", folder=tmp_path) as job:
        job.wait_for("training")
        joined(job, {"worker-0", "worker-1"})
        job.send(signal.SIGINT)
        code, out = job.finish()
    assert code == 130
    assert out[0].startswith("job train stopped after ") and "stopped by Ctrl-C" in out[0]
    story = running.events(tmp_path)
    assert {e["role"] for e in story if e["event"] == "finished"} == {"worker-0", "worker-1"}
    assert [e["phase"] for e in story if e["event"] == "phase"] == ["running", "draining", "stopped"]


def test_ctrl_c_stops_a_bsp_group_at_one_shard(tmp_path):
    running.script(tmp_path, running.endless_loop(f"{running.MEET}\n{running.TELLS}"))
    with running.springtide("run", "train.py", "--workers", "2", "--sync", "bsp", folder=tmp_path) as job:
        job.wait_for("training")
        job.send(signal.SIGINT)
        code, _ = job.finish()
    assert code == 130
    logs = tmp_path / ".springtide/runs/train/logs"
    trained = [(logs / f"worker-{rank}.log").read_text().splitlines()[-1] for rank in (0, 1)]
    assert trained[0] == trained[1] and trained[0].startswith("trained ")


def test_second_ctrl_c_kills(tmp_path):
    running.script(
        tmp_path, running.loop(body="print('training', flush=True)\nimport threading; threading.Event().wait()")
    )
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        pids = joined(job, {"server-0", "worker-0"})
        job.send(signal.SIGINT)
        job.wait_for("draining")
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130
    assert not any(running.alive(pid) for pid in pids.values())


def test_killed_server_without_checkpoints_ends_the_job_and_is_named(tmp_path):
    running.script(tmp_path, running.endless_loop())
    options = ("--servers", "2", "--workers", "2", "--checkpoint-every", "0")
    with running.springtide("run", "train.py", *options, folder=tmp_path) as job:
        job.wait_for("training")
        pid = job.roles()["server-1"]
        running.kill(pid)
        began = time.monotonic()
        code, out = job.finish()
    assert code == 3
    assert out[0].startswith(f"server-1 (pid {pid}) was killed by SIGKILL: its rows are lost")
    assert time.monotonic() - began < running.PATIENCE_S


def test_killed_worker_is_relaunched_under_its_next_incarnation(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", "--workers", "2", folder=tmp_path) as job:
        job.wait_for("training")
        pid = joined(job, {"worker-1"})["worker-1"]
        running.kill(pid)
        again = running.wait_for_event(job, "joined", role="worker-1", incarnation=1)
        assert again["pid"] != pid
        decision = running.wait_for_event(job, "decision", what="relaunch worker-1 as incarnation 1")
        assert decision["why"].startswith(f"worker-1 (pid {pid}) was killed by SIGKILL")
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130


def test_worker_over_its_relaunch_limit_ends_the_job_and_is_named(tmp_path):
    body = "if welcome.rank == 1:\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)"
    running.script(tmp_path, running.endless_loop(body))
    options = ("--workers", "2", "--relaunches", "1")
    with running.springtide("run", "train.py", *options, folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 3
    assert out[0].startswith("worker-1 (pid ") and out[0].endswith("relaunched 1 time already, which is the limit")


def test_stopped_worker_is_fenced_after_its_timeout_and_replaced(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", "--workers", "2", "--silence", "3", folder=tmp_path) as job:
        job.wait_for("training")
        pid = joined(job, {"worker-1"})["worker-1"]
        os.kill(pid, signal.SIGSTOP)
        fenced = running.wait_for_event(job, "fenced", role="worker-1", incarnation=0)
        assert fenced["why"].startswith("worker-1 has been silent for ")
        running.wait_for_event(job, "joined", role="worker-1", incarnation=1)
        waiting.until(lambda: not running.alive(pid), "the stopped one is ended")
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130


def watchdog_of(job, *before):
    """Process id of the command's watchdog, once it differs from those before."""

    def found():
        for path in pathlib.Path(f"/proc/{job.process.pid}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                named = b"watchdog.py" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                if named and pid not in before and running.alive(pid):
                    return pid
        return None

    return waiting.until(found, "there is a watchdog")


def test_killed_watchdog_is_replaced_and_no_role_or_child_outlives_the_command(tmp_path):
    body = (
        "if not trained:\n"
        "    import subprocess\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
        "    print('child', child.pid, flush=True)"
    )
    running.script(tmp_path, running.endless_loop(body))
    with running.springtide("run", "train.py", "--workers", "2", folder=tmp_path) as job:
        job.wait_for("child ")
        pids = joined(job, {"server-0", "worker-0", "worker-1"})
        first = watchdog_of(job)
        running.kill(first)
        running.kill(pids["worker-1"])  # it is started again while there is no watchdog, or a new one
        running.wait_for_event(job, "joined", role="worker-1", incarnation=1)
        second = watchdog_of(job, first)
        running.kill(second)
        last = watchdog_of(job, first, second)
        running.kill(pids["server-0"])
        running.wait_for_event(job, "joined", role="server-0", incarnation=1)
        logs = [job.folder / f".springtide/runs/train/logs/worker-{rank}.log" for rank in (0, 1)]
        children = [int(line.split()[1]) for log in logs for line in log.read_text().splitlines() if "child" in line]
        pids = [*job.roles().values(), master_of(job), last]
        assert all(running.alive(pid) for pid in pids) and any(running.alive(pid) for pid in children)
        job.send(signal.SIGKILL)
        job.finish()
        waiting.until(lambda: not any(map(running.alive, (*pids, *children))), "all processes of the job are gone")


def test_no_role_outlives_a_command_killed_together_with_its_watchdog(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        pids = [*job.roles().values(), master_of(job)]
        watchdog = watchdog_of(job)
        job.send(signal.SIGSTOP)  # it must not notice
        running.kill(watchdog)
        job.send(signal.SIGKILL)
        job.finish()
        waiting.until(lambda: not any(running.alive(pid) for pid in pids), "all roles are gone")


def test_killed_master_is_replaced_and_roles_reconnect(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        before = job.roles()
        running.kill(master_of(job))
        running.wait_for_event(job, "master", term=2)
        for role in ("server-0", "worker-0"):
            running.wait_for_event(job, "reconnected", role=role)
        assert job.roles() == before  # nobody was started again
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130


def test_stopped_master_is_detected_and_does_not_delay_ctrl_c(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        pids = [*job.roles().values(), master_of(job)]
        os.kill(pids[-1], signal.SIGSTOP)
        job.send(signal.SIGINT)
        job.wait_for("draining")
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130
    assert not any(running.alive(pid) for pid in pids)


def master_of(job):
    """The process id of the job's master, as it says itself."""
    return addresses.read_master(job.folder / ".springtide/runs/train/master.json").pid
