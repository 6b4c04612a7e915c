"""bsp groups with a row cache count every occurrence once when killed, scaled and restored."""

import random

import pytest

from springtide.domain.model import cache_rules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from tests.process import group_counting
from tests.process.group_counting import last_formed_group, until_back, until_formed
from tests.process.test_bsp_checkpoints import kill_together

pytestmark = pytest.mark.process


def spec(**more):
    given = dict(
        workers=2,
        servers=2,
        sync="bsp",
        heartbeat_s=0.1,
        silence_s=30.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        checkpoints=CheckpointRules(every_s=0.5),
        cache=cache_rules.rules("4K", allocation="laia"),
    )
    return JobSpec(name="cached", **(given | more))


def count(folder, seed, **how):
    """Count under faults, from the first checkpoint on; the last status, and what the counts are off by."""
    return group_counting.count(folder, spec, seed, begun=lambda status: status.checkpoints.number, **how)


def decisions_of(job):
    return [str(event["what"]) for event in job.story if event["event"] == "decision"]


@pytest.mark.soak  # CI has kills of groups without a cache, and caches without kills
@pytest.mark.timeout(400)
def test_lost_worker_rolls_a_cached_group_back_and_scaling_flushes_first(tmp_path):
    def hurt(job):
        job.until(lambda status: status.training.cache is not None and status.training.cache.dirty > 0)
        job.until(lambda _: "keep rows in the workers" in decisions_of(job))  # workers do not report together
        _, before = last_formed_group(job)
        job.kill_each("worker-1")
        until_back(job, before)
        assert any(what.startswith("roll the bsp group back to checkpoint") for what in decisions_of(job))
        job.scale(3)
        until_formed(job, 3)
        job.scale(2)
        until_formed(job, 2)

    status, wrong = count(tmp_path, 1, batches=1200, hurt=hurt, pause_s=0.05)
    assert not wrong, wrong
    assert status.training.cache.hits > 0 and status.training.cache.saved > 0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_cached_group_counts_once_after_loss_of_servers_and_masters(tmp_path):
    def hurt(job):
        kill_together(job, ["server-0"], ["server-1", "worker-0"], ["master", "worker-1"], ["worker-0", "worker-1"])

    _, wrong = count(tmp_path, 3, batches=6000, hurt=hurt)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(400, 406))
def test_random_kills_and_rescaling_of_a_cached_group_lose_and_repeat_nothing(tmp_path, seed):
    chance = random.Random(seed)
    print("seed", seed)
    policy = chance.choice(["anneal", "anneal+rows", "anneal+gradients", "laia", "random", "contiguous"])
    rules = cache_rules.rules(chance.choice([24, "1K", "64K"]), allocation=policy)

    def hurt(job):
        for _ in range(6):
            if job.over:
                return
            (_, before), alive = last_formed_group(job), sorted(job.pids())
            if chance.random() < 0.4:
                job.scale(**{chance.choice(["workers", "servers"]): chance.randint(2, 4)})
            else:
                chosen = chance.sample(alive, chance.randint(1, min(2, len(alive))))
                print("kill", [(role, job.kill(role)) for role in chosen])
                if chosen != ["master"]:
                    until_back(job, before)
            seen = job.status.samples
            job.until(lambda status, seen=seen: job.over or status.samples > seen + chance.randint(100, 1000))

    _, wrong = count(tmp_path, seed, batches=8000, hurt=hurt, cache=rules)
    assert not wrong, wrong
