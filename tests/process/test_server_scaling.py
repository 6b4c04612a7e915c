"""Servers are added and removed during training: slots move while served, counts are exact."""

import functools

import numpy as np
import pytest

from springtide import errors
from springtide.domain.model import cache_rules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, group_counting

pytestmark = pytest.mark.process

BATCH = 32


def spec(**more):
    given = dict(workers=2, servers=1, slots=128, heartbeat_s=0.2, relaunches=1000, backoff_s=0.0)
    return JobSpec(name="moves", **(given | more))


def wait_until_settled(job, servers):
    """Wait until exactly this many servers exist and hold all slots."""
    job.until(
        lambda status: (
            status.roles.servers.alive == servers
            and status.roles.servers.wanted == servers
            and not status.roles.slots_moving
            and owners(job) == servers
        )
    )


def at_rest(job, servers, status):
    """Whether exactly this many servers exist and no slot moves."""
    return status.roles.servers.alive == status.roles.servers.wanted == servers and not status.roles.slots_moving


def moves(job):
    """How often slots have moved."""
    return sum(event["event"] == "moved" for event in job.story)


def owners(job):
    """How many servers have slots, by the story of moves."""
    have = {0: 128}
    for event in job.story:
        if event["event"] == "moved":
            source, target = (int(str(event[end]).rpartition("-")[2]) for end in ("source", "target"))
            have[source] = have.get(source, 0) - int(str(event["slots"]))
            have[target] = have.get(target, 0) + int(str(event["slots"]))
    return sum(count > 0 for count in have.values())


def run(folder, seed, hurt, *, batches, pause_s=0.005, **more):
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)
    script = counting.write(folder, ids)
    with LocalCluster(script, [folder, 1, BATCH, pause_s], spec=spec(seed=seed, **more), folder=folder / "runs") as job:
        job.until(lambda status: status.samples > 0)
        hurt(job)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(ids), status
    assert not (wrong := counting.differences(folder, ids, epochs=1, batch=BATCH)), wrong
    return job


@pytest.mark.timeout(400)
def test_servers_scale_from_one_to_three_to_two_with_caches_and_kills(
    tmp_path,
):
    def hurt(job):
        with pytest.raises(errors.BadInput, match="a job needs at least one"):
            job.scale(servers=0)
        job.scale(servers=3)
        job.until(lambda _: any(event["event"] == "moved" for event in job.story))
        job.kill_each("worker-1")
        wait_until_settled(job, 3)
        job.scale(servers=2)
        job.kill_each("master")
        # what moved as the master died is in nobody's story; a server goes when its last slot has moved
        job.until(lambda status: at_rest(job, 2, status))

    job = run(tmp_path, 3, hurt, batches=800, pause_s=0.3, cache=cache_rules.rules("16K", staleness=3))
    kept = job.status.training.cache
    assert kept.on and kept.hits > 0 and "3 at most; the limit is 3" in kept.why, kept
    told = [event for event in job.story if event["event"] == "moved"]
    assert {str(event["target"]) for event in told} == {"server-1", "server-2", "server-0"} - {
        None if any(event["target"] == "server-0" for event in told) else "server-0"
    }
    decisions = [str(event["what"]) for event in job.story if event["event"] == "decision"]
    assert "scale from 1 to 3 servers: add server-1, server-2" in decisions
    assert "scale from 3 to 2 servers: drain server-2" in decisions
    assert "release server-2" in decisions
    assert any(what.startswith("move ") for what in decisions)
    assert any(event["event"] == "left" and event["role"] == "server-2" for event in job.story)


@pytest.mark.timeout(400)
def test_killed_migration_target_loses_and_repeats_nothing(tmp_path):
    def hurt(job):
        job.until(lambda status: status.checkpoints.number)
        job.scale(servers=2)
        job.until(lambda _: any(str(event.get("what", "")).startswith("move ") for event in job.story))
        job.kill_each("server-1")
        job.until(lambda status: lives(job) == [0, 1] and at_rest(job, 2, status) and moves(job))

    def lives(job):
        story = job.story
        return [each["incarnation"] for each in story if each["event"] == "ready" and each["role"] == "server-1"]

    job = run(tmp_path, 4, hurt, batches=500, pause_s=0.15, checkpoints=CheckpointRules(every_s=1.0))
    assert lives(job) == [0, 1]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_slots_of_a_cached_group_move_and_return_while_a_worker_is_killed(tmp_path):
    def hurt(job):
        job.until(lambda status: status.training.cache is not None and status.training.cache.dirty > 0)
        for servers in (3, 2):
            job.scale(servers=servers)
            job.until(lambda status, servers=servers: at_rest(job, servers, status) and owners(job) == servers)
            before = job.status.samples
            job.until(lambda status, before=before: job.over or status.samples > before + 10 * BATCH)
        job.kill("worker-1")

    bsp = functools.partial(spec, sync="bsp", heartbeat_s=0.1, cache=cache_rules.rules("4K", allocation="laia"))
    how = dict(checkpoints=CheckpointRules(every_s=1.0), batches=1500, hurt=hurt)
    status, wrong = group_counting.count(tmp_path, bsp, 1, begun=lambda status: status.checkpoints.number, **how)
    assert not wrong, wrong
    assert status.roles.servers.alive == 2


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(200, 206))
def test_repeated_server_scaling_and_kills_count_exactly(tmp_path, seed):
    chance = np.random.default_rng(seed)

    def hurt(job):
        for servers in (4, 2, 3, 1, 3):
            job.scale(servers=servers)
            for _ in range(int(chance.integers(0, 3))):
                job.kill(str(chance.choice(["worker-0", "worker-1", "master"])))
                job.until(lambda status: status.roles.workers.alive >= 1)
            wait_until_settled(job, servers)
            job.scale(int(chance.integers(1, 4)))

    run(tmp_path, seed, hurt, batches=24000, pause_s=0.003)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(210, 216))
def test_servers_killed_during_slot_moves_lose_and_repeat_nothing(tmp_path, seed):
    chance = np.random.default_rng(seed)

    def hurt(job):
        job.until(lambda _: any(event.get("outcome") == "complete" for event in job.story))
        for servers in (3, 2, 4, 1):
            reached = functools.partial(at_rest, job, servers)
            moved = moves(job)
            job.scale(servers=servers)
            job.until(lambda status, before=moved, rest=reached: moves(job) > before or rest(status))
            alive = [role for role in job.pids() if role.startswith("server-")]
            for role in chance.choice(alive, size=min(len(alive), int(chance.integers(1, 3))), replace=False):
                job.kill(str(role))
            if chance.random() < 0.3:
                job.kill("master")
            job.until(reached)

    run(tmp_path, seed, hurt, batches=9000, pause_s=0.004, checkpoints=CheckpointRules(every_s=1.0))
