"""Data workers in a real job: whatever becomes of them, each sample is trained exactly once, and the loop goes on."""

import numpy as np
import pytest

from springtide.domain.feeding import FeedRules
from springtide.domain.job import JobSpec, Phase
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH = 32


def spec(**more):
    """A job with two data workers that notices quickly, and never gives up."""
    given = dict(workers=1, servers=1, heartbeat_s=0.1, silence_s=5.0, relaunches=1000, backoff_s=0.0, drain_s=10)
    return JobSpec(name="fed", **(dict(feeding=FeedRules(workers=2)) | given | more))


def run(folder, seed, *, batches, hurt, pause_s=0.005, epochs=1, script_text=counting.SCRIPT, **more):
    """Count while data workers feed and are hurt; the last status, and what the counts are off by."""
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)  # the last batch is not full
    script = counting.write(folder, ids, script_text)
    with LocalCluster(script, [folder, epochs, BATCH, pause_s], spec=spec(seed=seed, **more), folder=folder) as job:
        done = hurt(job)
        status = job.wait()
    assert status.phase is Phase.FINISHED, (done, status)
    assert status.samples == epochs * len(ids), (done, status)
    return status, done, counting.differences(folder, ids, epochs=epochs, batch=BATCH)


def fed(job, more=1):
    """Wait until data workers have made so many more batches for the loop."""
    before = job.status.feed.made if job.status.feed else 0
    return job.until(lambda status: status.feed is not None and status.feed.made >= before + more)


@pytest.mark.timeout(120)
def test_killed_data_workers_one_and_all_lose_and_repeat_nothing(tmp_path):
    def hurt(job):
        fed(job, 20)
        job.kill("data-worker-0")
        fed(job, 20)
        job.kill("data-worker-0"), job.kill("data-worker-1")
        fed(job, 20)
        return job.status

    status, _, wrong = run(tmp_path, 1, batches=1200, hurt=hurt)
    assert not wrong, wrong
    assert status.relaunches >= 2
