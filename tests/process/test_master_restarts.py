"""A killed or hanging master is replaced while workers and servers continue; every shard is trained."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import waiting
from tests.process import running

pytestmark = pytest.mark.process

PACED = running.loop(
    body="if not trained:\n    print('training', flush=True)\n"
    "import os, time; time.sleep(0.0 if os.path.exists('hurry') else 0.6)",
    samples=12_000,
)
NOTED = running.loop(
    body="ahead.keep_up(card, 20)\nopen('steps', 'a').write('.')\nimport time; time.sleep(0.02)", samples=10**12
)
for ours, real in (
    ("here.leases.lease(card, 1)", "ahead.more(card)"),
    (
        "trained = 0\n",
        "trained = 0\nfrom springtide.worker.input import lease_prefetch\n"
        "ahead = lease_prefetch.PrefetchedLeases(here.leases.lease, here.leases.tracker)\n",
    ),
):
    assert ours in NOTED
    NOTED = NOTED.replace(ours, real)  # leases are asked for ahead of their use, as training does


def where(folder):
    """The newest master's location file."""
    return json.loads((folder / ".springtide/runs/train/master.json").read_text())


def test_killed_master_is_replaced_under_a_higher_term_and_the_job_finishes(tmp_path):
    running.script(tmp_path, PACED)
    with running.springtide("run", "train.py", "--workers", "2", "--json", folder=tmp_path) as job:
        job.wait_for("training")
        waiting.until(lambda: len(job.roles()) == 3, "all have joined")
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import springtide.master.main"], check=True)
        bare_s = time.monotonic() - began
        before, first = job.roles(), where(tmp_path)
        running.kill(first["pid"])
        with running.springtide("status", "--json", folder=tmp_path) as other:  # waits for the next master
            code, out = other.finish()
        assert code == 0 and json.loads(out[-1])["phase"] == "running", out
        said = job.wait_for("another (term 2) listens after ")
        second = where(tmp_path)
        (tmp_path / "hurry").touch()
        code, out = job.finish()
    assert code == 0, (out, job.said)
    assert said.startswith(f"master (pid {first['pid']}) was killed by SIGKILL")
    assert (first["term"], second["term"]) == (1, 2) and first["pid"] != second["pid"]
    result = json.loads(out[-1])
    assert (result["data"]["shards_done"], result["data"]["shards_total"], result["master"]["term"]) == (600, 600, 2)
    story = running.events(tmp_path)
    [replaced] = [event for event in story if event["event"] == "master_replaced"]
    print(f"the next master listened after {replaced['seconds']} s")
    assert replaced["seconds"] < max(15.0, 6 * bare_s), "more than a start of the process alone explains"
    assert {event["role"]: event["pid"] for event in story if event["event"] == "joined"} == before, (
        "someone else joined"
    )


def test_hanging_master_is_replaced_while_workers_train(tmp_path):
    def steps():
        return (tmp_path / "steps").stat().st_size if (tmp_path / "steps").exists() else 0

    running.script(tmp_path, NOTED)
    with running.springtide("run", "train.py", "--silence", "3", folder=tmp_path) as job:
        waiting.until(lambda: steps() > 50, "the worker knows its pace")
        first = where(tmp_path)["pid"]
        job.send(signal.SIGSTOP)  # the agent: however long that takes, there is no other master meanwhile
        os.kill(first, signal.SIGSTOP)
        before = steps()
        waiting.until(lambda: steps() > before + 20, "batches that were leased before are trained")
        assert where(tmp_path)["pid"] == first and running.alive(first)
        job.send(signal.SIGCONT)
        said = job.wait_for("term 2")
        assert not running.alive(first)
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130
    assert "silent for 3 s" in " ".join([*job.said[-3:], said])


def test_unreadable_journal_ends_the_job_with_that_reason_first(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("training")
        master = where(tmp_path)["pid"]
        os.kill(master, signal.SIGSTOP)  # so that it does not mend what is broken now
        for path in (tmp_path / ".springtide/runs/train").glob("journal.db*"):
            path.write_bytes(b"garbage" * 1000)
        running.kill(master)
        code, out = job.finish()
    assert code == 3
    assert out[0] == "the master's journal .springtide/runs/train/journal.db cannot be used: file is not a database"
