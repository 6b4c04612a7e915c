"""Under random faults and scaling, each sample's gradient reaches each row it touches exactly once."""

import numpy as np
import pytest

from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting
from tests.process.fault_injector import FaultInjector, FaultPlan

pytestmark = pytest.mark.process

BATCH = 32
SILENCE_S = 2.0


def spec(**more):
    """A job that notices quickly, and never gives up."""
    given = dict(workers=3, servers=2, heartbeat_s=0.2, silence_s=SILENCE_S, relaunches=1000, backoff_s=0.0, drain_s=10)
    return JobSpec(name="counts", **(given | more))


def run(
    folder,
    seed,
    *,
    batches,
    hurt,
    pause_s=0.005,
    epochs=1,
    early=False,
    script_text=counting.SCRIPT,
    change=None,
    **more,
):
    """Count under faults; the last status, the faults done, and what the counts are off by."""
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)  # the last batch is not full
    text = script_text if change is None else change(script_text, ids, folder)
    script = counting.write(folder, ids, text)
    arguments = [folder, epochs, BATCH, pause_s]
    with LocalCluster(script, arguments, spec=spec(seed=seed, **more), folder=folder / "runs") as job:
        if not early:
            job.until(lambda status: status.samples > 0)
        done = hurt(job)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, (done, status)
    assert status.samples == epochs * len(ids), (done, status)
    return status, done, counting.differences(folder, ids, epochs=epochs, batch=BATCH)


@pytest.mark.timeout(400)
def test_one_fault_of_every_kind_loses_and_repeats_no_row_of_a_file(tmp_path):
    killed = [["worker-0", "worker-2"], ["master"], ["master", "worker-1"]]

    def hurt(job):
        for roles in killed:
            job.until(lambda _: job.pids().keys() >= {"master", "worker-0", "worker-1", "worker-2"})
            job.kill_each(*roles)
        done = []
        for kind in ("stop worker", "scale"):
            plan = FaultPlan(seed=4, silence_s=SILENCE_S, pause_s=(0.1, 0.5), kinds={kind: 1})
            done += FaultInjector(plan, job).run(at_most=1)
        return done

    _, done, wrong = run(tmp_path, 1, batches=500, pause_s=0.75, hurt=hurt, change=counting.from_parquet)
    assert not wrong, (done, wrong)
    stopped, scaled = done
    assert stopped.startswith("stopped worker-") and scaled.startswith("scaled to ")


@pytest.mark.timeout(400)
def test_temporarily_unreadable_samples_and_early_exits_lose_and_repeat_nothing(tmp_path):
    for index in (0, 77, 4000):
        (tmp_path / f"unreadable-{index}").touch()

    def hurt(job):
        (tmp_path / "leave-1").write_text("without a word")
        (tmp_path / "leave-2").write_text("sys.exit")
        job.until(lambda _: job.over or not list(tmp_path.glob("leave-*")))
        return job

    status, job, wrong = run(tmp_path, 2, batches=300, pause_s=0.3, hurt=hurt, silence_s=30.0)
    assert not wrong, wrong
    story = job.story
    assert not list(tmp_path.glob("unreadable-*"))
    assert {event["event"] for event in story} >= {"unreadable", "finished", "decision"}
    assert status.roles.relaunches == 1 and not status.data.poisoned
    left = [event for event in story if event["event"] == "exited" and event["role"] == "worker-2"]
    assert [event["incarnation"] for event in left] == [0]  # it said that it was through, and is not started again


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_staleness_bound_holds_when_a_worker_is_lost(tmp_path):
    bounded = counting.SCRIPT.replace("seed=7)", "seed=7, max_staleness=1)")
    assert bounded != counting.SCRIPT
    status, _, wrong = run(
        tmp_path, 5, batches=300, hurt=lambda job: job.kill("worker-1"), script_text=bounded, pause_s=0.002
    )
    assert not wrong, wrong
    assert status.training.staleness == 1 and status.training.staleness_p50 <= 1, status  # all three at once would be 2


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("parts", "seed"), [(3, 11), (4, 12), (7, 13)])
def test_accumulated_batches_are_trained_once_and_whole_under_random_faults(tmp_path, parts, seed):
    plan = FaultPlan(seed=seed, silence_s=SILENCE_S, pause_s=(0.5, 2.0))
    script = counting.summing(counting.SCRIPT, parts)
    _, done, wrong = run(
        tmp_path,
        seed,
        batches=1500,
        epochs=2,
        script_text=script,
        hurt=lambda job: FaultInjector(plan, job).run(at_most=8),
    )
    print(f"{parts} batches a step: {done}")
    assert not wrong, (done, wrong)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 130))
def test_twenty_random_faults_lose_and_repeat_nothing(tmp_path, seed):
    plan = FaultPlan(seed=seed, silence_s=SILENCE_S, pause_s=(0.5, 3.0))
    early = seed % 3 == 0  # faults from the first moment on, while everyone is still joining
    _, done, wrong = run(
        tmp_path,
        seed,
        batches=3000,
        pause_s=0.15,
        early=early,
        hurt=lambda job: FaultInjector(plan, job).run(at_most=24),
    )
    print(f"seed {seed}: {done}")
    assert not wrong, (done, wrong)
    assert len(done) >= 20, done
