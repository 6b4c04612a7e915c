"""Data workers in a real job: each sample is trained exactly once whatever fails."""

import random
import signal

import numpy as np
import pytest

from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, group_counting

pytestmark = pytest.mark.process

BATCH = 32


def spec(**more):
    """A job with two data workers that never gives up."""
    given = dict(workers=1, servers=1, heartbeat_s=0.1, relaunches=1000, backoff_s=0.0)
    return JobSpec(name="fed", **(dict(feeding=FeedRules(workers=2)) | given | more))


def run(folder, seed, *, batches, hurt, pause_s=0.02, epochs=1, script_text=counting.SCRIPT, **more):
    """Count slowly while data workers are hurt, then fast; return the last status and the count differences."""
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)  # the last batch is not full
    script = counting.write(folder, ids, script_text)
    with LocalCluster(script, [folder, epochs, BATCH, pause_s], spec=spec(seed=seed, **more), folder=folder) as job:
        done = hurt(job)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, (done, status)
    assert status.samples == epochs * len(ids), (done, status)
    return status, done, counting.differences(folder, ids, epochs=epochs, batch=BATCH)


def wait_until_fed(job, more=1):
    """Wait until data workers have made this many more batches."""
    before = job.status.data.feed.made if job.status.data.feed else 0
    return job.until(lambda status: status.data.feed is not None and status.data.feed.made >= before + more)


def all_feed(job, count):
    """Wait until exactly this many data workers feed the worker."""
    return job.until(
        lambda status: (
            status.data.feed is not None and status.data.feed.workers == count == status.roles.data_workers.alive
        )
    )


@pytest.mark.timeout(400)
def test_each_sample_is_trained_once_for_any_kill_and_any_number_of_data_workers(tmp_path):
    def hurt(job):
        all_feed(job, 2)
        job.kill_each("data-worker-0")
        wait_until_fed(job, 10)
        all_feed(job, 2)
        job.kill_each("data-worker-0", "data-worker-1", "master")
        job.until(lambda status: status.master.term == 2)
        all_feed(job, 2)
        job.kill_each("worker-0")
        job.until(lambda status: any(each.role.kind == "worker" and each.incarnation for each in status.members))
        all_feed(job, 2)  # its next life
        job.scale(data_workers=1)
        all_feed(job, 1)
        wait_until_fed(job, 10)
        return job

    status, job, wrong = run(tmp_path, 1, batches=250, hurt=hurt, pause_s=0.6)
    assert not wrong, wrong
    assert status.roles.relaunches >= 4
    left = [each for each in job.story if each["event"] == "exited" and each["role"].startswith("data-worker")]
    assert sum("SIGKILL" in each["how"] for each in left) >= 3
    drained = [each for each in left if "status 0" in each["how"]]
    assert drained, "the one that scaling removed has left by itself"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_random_data_worker_kills_and_counts_lose_and_repeat_nothing(tmp_path, seed):
    chance = random.Random(seed)

    def hurt(job):
        wait_until_fed(job)
        for count in (1, 6, 2, chance.randrange(1, 5)):
            job.scale(data_workers=count)
            wait_until_fed(job, 30)
            for _ in range(3):
                job.kill(f"data-worker-{chance.randrange(count)}")
                wait_until_fed(job, chance.randrange(20))
            if chance.random() < 0.5:
                job.kill(chance.choice(["worker-0", "worker-1", "master"]))
        return job

    _, _, wrong = run(tmp_path, seed, batches=4000, epochs=2, hurt=hurt, workers=2, servers=2)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_batches_of_a_stopped_data_worker_are_made_by_others(tmp_path):
    def hurt(job):
        all_feed(job, 2)
        assert job.signal("data-worker-0", signal.SIGSTOP)
        wait_until_fed(job, 100)
        return job

    _, _, wrong = run(tmp_path, 5, batches=1500, hurt=hurt)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_fed_bsp_group_counts_exactly(tmp_path):
    def hurt(job):
        job.until(lambda status: status.roles.data_workers.alive == 2)
        wait_until_fed(job, 20)
        assert job.kill("data-worker-1")
        wait_until_fed(job, 20)

    group = lambda **more: spec(workers=2, sync="bsp", **more)  # noqa: E731
    _, wrong = group_counting.count(tmp_path, group, 6, batches=800, hurt=hurt, pause_s=0.02)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_poison_sample_is_reported_with_its_index(tmp_path, policy):
    ids = counting.draw(np.random.default_rng(7), 300 * BATCH)
    text = counting.SCRIPT.replace("        trap = ", "        assert index != 4711, 'poison'\n        trap = ")
    script, rules = counting.write(tmp_path, ids, text), FeedRules(workers=1, poison=policy)
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.01], spec=spec(feeding=rules), folder=tmp_path) as job:
        status = job.wait()
    if policy == "fail":
        assert status.phase is JobPhase.FAILED and "sample 4711: AssertionError: poison" in status.why
        return
    assert status.phase is JobPhase.FINISHED
    assert [each.indices for each in status.data.left_out] == [(4711,)] and status.data.samples_left_out == 1
    assert any(str(each.get("what")).startswith("train without sample 4711 (shard ") for each in job.story)
    left = np.delete(ids, 4711, axis=0)
    wrong = counting.differences(tmp_path, left, epochs=1, batch=BATCH)
    assert not {key: off for key, off in wrong.items() if not key.startswith("dense")}, wrong


WHOLE = range(20 * BATCH, 21 * BATCH)
PART = range(40 * BATCH, 40 * BATCH + BATCH // 2)
"""Of the samples that follow each other: a batch, and in a group of two all that one rank has of another."""


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["async", "summed", "bsp"])
def test_batch_of_only_poison_samples_is_skipped_and_named(tmp_path, kind):
    ids = counting.draw(np.random.default_rng(8), 300 * BATCH)
    text = group_counting.COUNTING if kind == "bsp" else counting.SCRIPT
    text = counting.summing(text, 4) if kind == "summed" else text
    broken = f"        assert not ({WHOLE[0]} <= index <= {WHOLE[-1]} or {PART[0]} <= index <= {PART[-1]}), 'poison'\n"
    text = text.replace("        trap = ", f"{broken}        trap = ").replace("seed=7", "seed=7, shuffle=False")
    script, rules = counting.write(tmp_path, ids, text), FeedRules(workers=0, poison="skip")
    given = spec(feeding=rules, workers=2, sync="bsp" if kind == "bsp" else "async")
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.2], spec=given, folder=tmp_path) as job:
        job.until(lambda status: status.samples > 10 * BATCH and "worker-1" in job.pids())
        assert job.kill("worker-1")
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(ids) and status.data.samples_left_out == len(WHOLE) + len(PART)
    counts = dict(np.load(tmp_path / "counts.npz"))
    if kind == "bsp":  # each occurrence counts by its rank's share of the batch, over what is left of that
        np.savez(
            tmp_path / "counts.npz", **{**counts, "small": counts["small"] * BATCH, "rows": counts["rows"] * BATCH}
        )
    left = np.delete(ids, [*WHOLE, *PART], axis=0)
    wrong = counting.differences(tmp_path, left, epochs=1, batch=BATCH)
    assert not {key: off for key, off in wrong.items() if not key.startswith("dense")}, wrong
