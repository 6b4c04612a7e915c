"""A bsp group trains from a stream: each record counts once whichever role is lost."""

import numpy as np
import pytest

from springtide.domain.model import cache_rules
from springtide.domain.spec.job_spec import JobPhase
from springtide.testing.cluster import LocalCluster
from tests.process import stream_counting
from tests.process.test_stream_jobs import spec

pytestmark = pytest.mark.process

BATCH = 32
SCRIPT = stream_counting.SCRIPT.replace("(-model(x)).backward()", "(-model(x) / len(x)).backward()")
"""In a group gradients are means: each occurrence counts 1 / BATCH, and the dense parameters one a step."""


def count(folder, hurt, *, first=10, **more):
    """Run a group over `first` full batches per partition and later ones; return the count differences."""
    assert SCRIPT != stream_counting.SCRIPT
    producer = stream_counting.Producer(folder, partitions=3)
    producer.append(3 * BATCH * first)
    (folder / "count.py").write_text(SCRIPT)
    arguments = [folder, BATCH, 0.01, {}]
    with LocalCluster(
        folder / "count.py", arguments, spec=spec(sync="bsp", silence_s=5.0, **more), folder=folder / "runs"
    ) as job:
        job.until(lambda status: status.samples > 0)
        hurt(job)
        producer.append(3 * BATCH * 5)
        producer.seal()
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(producer.records)
    counts = dict(np.load(folder / "counts.npz"))
    times = {name: counts[name] * BATCH for name in ("each", "often", "seen")}
    np.savez(folder / "counts.npz", **{**counts, **times})
    return stream_counting.differences(folder, producer.records)


@pytest.mark.timeout(400)
def test_group_that_loses_a_member_trains_each_stream_record_once(tmp_path):
    assert not count(tmp_path, lambda job: job.kill_each("worker-1"))


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("role", ["worker-0", "server-1", "master"])
def test_each_record_is_trained_once_for_any_lost_role(tmp_path, role):
    def hurt(job):
        job.until(lambda status: status.checkpoints.number)
        assert job.kill(role)

    assert not count(tmp_path, hurt)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_rescaled_group_trains_each_stream_record_once(tmp_path):
    def hurt(job):
        job.scale(3)
        job.until(lambda status: status.roles.workers.alive == 3)
        job.scale(1)

    assert not count(tmp_path, hurt)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("allocation", ["laia", "anneal+gradients"])
def test_cached_group_trains_each_record_once_through_loss_rescaling_and_pause(tmp_path, allocation):
    def keeping(job):
        job.until(
            lambda status: (
                status.training.cache is not None and status.training.cache.on and status.training.cache.dirty > 0
            )
        )

    def hurt(job):
        job.until(lambda status: status.checkpoints.number)
        keeping(job)
        lives = job.pids()["worker-0"]
        assert job.kill("worker-1")
        job.until(lambda status: job.pids().get("worker-0", lives) != lives)  # all go back to the checkpoint
        keeping(job)
        job.scale(3)
        job.until(lambda status: status.roles.workers.alive == 3)
        keeping(job)
        job.until(
            lambda status: (
                status.samples == 3 * BATCH * 500 and status.training.cache is not None and not status.training.cache.on
            )
        )

    rules = cache_rules.rules("4K", allocation=allocation)
    assert not count(tmp_path, hurt, first=500, cache=rules)
