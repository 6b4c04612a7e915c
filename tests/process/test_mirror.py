"""The loss of a host: a server is killed, its folder removed, and the job goes on exactly from its buddy's copies."""

import shutil

import numpy as np
import pytest

from springtide.domain.checkpoints import CheckpointRules
from springtide.domain.job import JobSpec, Phase
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH, SEED = 32, 20261116


def ready(job, role):
    return [event for event in job.story if event["event"] == "ready" and event["role"] == role]


@pytest.mark.timeout(240)
def test_a_killed_server_whose_folder_is_gone_comes_back_from_its_buddy_and_counts_are_exact(tmp_path):
    print("seed", SEED)
    ids = counting.draw(np.random.default_rng(SEED), 500 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    spec = JobSpec(
        name="counts", workers=2, servers=2, heartbeat_s=0.2, relaunches=1000, backoff_s=0.0, slots=128, seed=SEED,
        checkpoints=CheckpointRules(every_s=0.5, mirror=True),
    )  # fmt: skip
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.004], spec=spec, folder=tmp_path / "runs") as job:
        for role in ("server-1", "server-0"):
            saved = job.status.checkpoint
            job.until(lambda status, saved=saved: status.checkpoint >= saved + 2)
            before = len(ready(job, role))
            assert job.kill(role)
            shutil.rmtree(job.files.checkpoints / role)
            job.until(lambda _, role=role, before=before: len(ready(job, role)) > before)
        status = job.wait()
    assert status.phase is Phase.FINISHED, status
    for role in ("server-1", "server-0"):
        back = ready(job, role)[-1]
        assert back["checkpoint"] and "was read from its mirror" in back["mirror"], back
        assert back["where"] == str(job.files.checkpoints), "from memory, not from storage"
    complete = [event for event in job.story if event["event"] == "checkpoint" and event["outcome"] == "complete"]
    assert complete[0]["mirror"] == complete[-1]["mirror"] == "complete"
    assert counting.differences(tmp_path, ids, epochs=1, batch=BATCH) == {}
