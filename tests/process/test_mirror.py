"""A killed server whose folder is removed is restored from its buddy's copies with exact counts."""

import random
import shutil
import signal

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests import waiting
from tests.process import counting, running

pytestmark = pytest.mark.process

BATCH, SEED = 32, 20261116


def ready_events(job, role):
    return [event for event in job.story if event["event"] == "ready" and event["role"] == role]


def lose(job, role):
    """Lose a host: its folder is removed while its server is stopped, before the next incarnation starts."""
    pid = job.signal(role, signal.SIGSTOP)
    waiting.until(lambda: set(running.states(pid)) == {"T"}, f"no thread of {role} writes")
    shutil.rmtree(job.files.checkpoints / role)
    job.kill_each(role)


def run(folder, seed, losses, *, batches):
    """Count while hosts are lost one after another; return the job and the count differences."""
    print("seed", seed)
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)
    script = counting.write(folder, ids)
    spec = JobSpec(
        name="counts",
        workers=1,
        servers=2,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        slots=128,
        seed=seed,
        checkpoints=CheckpointRules(every_s=0.5, mirror=True),
    )
    with LocalCluster(script, [folder, 1, BATCH, 0.3], spec=spec, folder=folder / "runs") as job:
        for role in losses:
            saved = job.status.checkpoints.number
            job.until(lambda status, saved=saved: status.checkpoints.number >= saved + 2)
            before = len(ready_events(job, role))
            lose(job, role)
            job.until(lambda _, role=role, before=before: len(ready_events(job, role)) > before)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    for role in set(losses):
        back = ready_events(job, role)[-1]
        assert back["checkpoint"] and "was read from its mirror: the file is missing on this disk" in back["mirror"], (
            back
        )
        assert back["where"] == str(job.files.checkpoints), "from memory, not from storage"
    return job, counting.differences(folder, ids, epochs=1, batch=BATCH)


@pytest.mark.timeout(400)
def test_server_with_a_lost_folder_is_restored_from_its_buddy_with_exact_counts(tmp_path):
    job, wrong = run(tmp_path, SEED, ["server-1"], batches=250)
    assert not wrong, wrong
    complete = [event for event in job.story if event["event"] == "checkpoint" and event["outcome"] == "complete"]
    assert complete[0]["mirror"] == complete[-1]["mirror"] == "complete"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(500, 504))
def test_hosts_lost_in_turn_lose_and_repeat_nothing_with_mirroring(tmp_path, seed):
    chance = random.Random(seed)
    _, wrong = run(tmp_path, seed, [chance.choice(["server-0", "server-1"]) for _ in range(5)], batches=1500)
    assert not wrong, wrong
