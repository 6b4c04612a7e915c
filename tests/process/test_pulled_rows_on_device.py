"""Async workers that pool the rows of servers on the device count every occurrence once when anything is lost.

The device is the CPU: the script tells tables that they are on a GPU, and copies the ids as a loop copies them to one.
"""

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting
from tests.process.test_rows_on_device import PRETEND

pytestmark = pytest.mark.process

BATCH = 32
SEEN = """from springtide.embedding.lookup.pulled_rows import PulledRows
pooled = []
finish = PulledRows.finish_copy
PulledRows.finish_copy = lambda rows: (pooled.append(1), finish(rows))[1]
for x in batches:
    x = x.clone()"""
SCRIPT = counting.SCRIPT.replace("\njob = st.join()\n", PRETEND).replace("for x in batches:", SEEN)
SCRIPT = SCRIPT.replace("if not job.leaving:", "assert pooled\nif not job.leaving:")


def test_killed_worker_server_and_both_lose_and_repeat_nothing(tmp_path):
    spec = JobSpec(
        name="pooled",
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        seed=3,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    ids = counting.draw(np.random.default_rng(3), 400 * BATCH - 5)
    script = counting.write(tmp_path, ids, SCRIPT)
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.06], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.checkpoints.number and status.samples > 0)
        for roles in (["worker-0"], ["server-1"], ["server-0", "worker-1"]):
            before = {role: lives(job, role) for role in roles if role.startswith("server-")}
            begun = job.status.samples
            job.until(lambda status, begun=begun: status.samples >= begun + 20 * BATCH)
            job.kill_each(*roles)
            job.until(lambda _, before=before: all(lives(job, role) > count for role, count in before.items()))
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert not counting.differences(tmp_path, ids, epochs=1, batch=BATCH)


def lives(job, role):
    """How often a server has been ready."""
    return sum(event["event"] == "ready" and event["role"] == role for event in job.story)
