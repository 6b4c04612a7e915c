"""A lost server is restored: each sample's gradient reaches each row it touches exactly once."""

import random
import signal
import time

import numpy as np
import pytest

from springtide import _native
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import number_in, number_of
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting
from tests.process.fault_injector import WITH_SERVERS, FaultInjector, FaultPlan

pytestmark = pytest.mark.process

BATCH = 32
SILENCE_S = 3.0
NOTICES_QUICKLY = dict(silence_s=SILENCE_S, server_silence_s=SILENCE_S)
"""Where processes are stopped: one that is killed is missed at once, and a busy machine keeps others silent too."""


def spec(**more):
    """A job that saves often and never gives up."""
    given = dict(
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        drain_s=10,
        slots=128,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    return JobSpec(name="counts", **(given | more))


def run(folder, seed, *, batches, hurt, pause_s=0.004, epochs=1, **more):
    """Count under faults; return the last status, the result of `hurt`, and the count differences."""
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)
    script = counting.write(folder, ids)
    arguments = [folder, epochs, BATCH, pause_s]
    with LocalCluster(script, arguments, spec=spec(seed=seed, **more), folder=folder / "runs") as job:
        job.until(lambda status: status.checkpoints.number and status.samples > 0)
        done = hurt(job)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, (done, status)
    return status, done, counting.differences(folder, ids, epochs=epochs, batch=BATCH)


def lives(job, role):
    """How often a role has been ready."""
    return sum(event["event"] == "ready" and event["role"] == role for event in job.story)


@pytest.mark.timeout(400)
def test_killed_servers_worker_and_master_lose_and_repeat_nothing(tmp_path):
    def hurt(job):
        for roles in (["server-1"], ["server-0", "server-1"], ["server-0", "worker-1", "master"]):
            begun = job.status.samples
            job.until(  # so that there is something to train again
                lambda status, begun=begun: (
                    status.samples >= begun + 5 * BATCH and time.time() - status.checkpoints.begun_at > 0.8
                )
            )
            before = {role: lives(job, role) for role in roles if role.startswith("server-")}
            job.kill_each(*roles)
            job.until(lambda _, before=before: all(lives(job, role) > count for role, count in before.items()))
        return job

    rules = CheckpointRules(every_s=1.5)
    status, job, wrong = run(tmp_path, 11, batches=250, hurt=hurt, pause_s=0.3, checkpoints=rules)
    assert not wrong, wrong
    assert status.samples == 250 * BATCH - 5
    back = [event for event in job.story if event["event"] == "ready" and event.get("checkpoint")]
    assert len(back) == 4 and any(event["samples_again"] for event in back)
    print([(event["role"], event["checkpoint"], event["samples_again"]) for event in back])


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_suspended_server_is_replaced_and_its_resumption_changes_nothing(tmp_path):
    def hurt(job):
        pid = job.pids()["server-0"]
        assert job.signal("server-0", signal.SIGSTOP)
        job.until(lambda _: lives(job, "server-0") > 1)
        job.wake(pid)
        return job

    _, job, wrong = run(tmp_path, 12, batches=400, hurt=hurt, **NOTICES_QUICKLY)
    assert not wrong, wrong
    assert any("silent" in str(event.get("why")) for event in job.story if event["event"] == "lost")


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_partial_recovery_retrains_nothing_and_keeps_healthy_slots(tmp_path):
    def hurt(job):
        job.until(lambda status: time.time() - status.checkpoints.begun_at > 0.8)  # so that there is something to lose
        job.kill("server-1")
        job.until(lambda _: lives(job, "server-1") > 1)
        return job

    rules = CheckpointRules(every_s=1.5)
    status, job, wrong = run(tmp_path, 13, batches=400, hurt=hurt, recovery="partial", checkpoints=rules)
    (back,) = [event for event in job.story if event["event"] == "ready" and event.get("checkpoint")]
    assert back["samples_again"] == 0 and status.samples == 400 * BATCH - 5
    assert wrong and all(extra < 0 for extra in wrong.values()), f"behind, and nothing repeated: {wrong}"
    tables = checkpoint_io.latest(str(job.files.checkpoints), ()).manifest.tables
    ids, store = {spec.name: spec.id for spec in tables}, _native.Store(slots=128, seed=0)
    for name, key in (told.split() for told in wrong if not told.startswith("dense")):
        table = next(number for full, number in ids.items() if full.startswith(name))
        (slot,) = store.slot_of(table, np.array([int(key)]))
        assert slot >= 64, f"{name} {key} was on server-0, which was never lost"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(200, 220))
def test_random_server_worker_and_master_deaths_lose_and_repeat_nothing(tmp_path, seed):
    plan = FaultPlan(seed=seed, silence_s=SILENCE_S, pause_s=(0.5, 4.0), kinds=WITH_SERVERS, most_workers=3)
    more = NOTICES_QUICKLY | (dict(servers=3) if seed % 2 else {})
    _, done, wrong = run(
        tmp_path,
        seed,
        batches=2500,
        epochs=1 + seed % 2,
        hurt=lambda job: FaultInjector(plan, job).run(at_most=20),
        **more,
    )
    print(f"seed {seed}: {done}")
    assert not wrong, (done, wrong)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(300, 306))
def test_damaged_newest_checkpoint_falls_back_to_the_previous(tmp_path, seed):
    """Servers and ledger use the previous one and log it; the newest is torn or has other bytes."""

    def hurt(job):
        before = job.until(lambda status: status.checkpoints.number >= 3).checkpoints.number
        job.until(lambda status: status.checkpoints.number > before)  # so that another one is not complete at once
        if seed % 2:
            newest = max(job.files.checkpoints.glob("manifest-*.ckpt"))
            newest.write_bytes(newest.read_bytes()[: -(1 + seed % 7)])
        else:
            newest = max(job.files.checkpoints.glob("server-1.0-*.seg"))
            content = bytearray(newest.read_bytes())
            content[seed % 7 :: 64] = bytes(len(content[seed % 7 :: 64]))
            newest.write_bytes(content)
        job.kill("server-1")
        job.until(lambda _: lives(job, "server-1") > 1)
        return job, number_in(newest.name) or number_of(newest.name)

    _, (job, number), wrong = run(tmp_path, seed, batches=1200, hurt=hurt, checkpoints=CheckpointRules(every_s=1.5))
    assert not wrong, wrong
    (back,) = [event for event in job.story if event["event"] == "ready" and event.get("checkpoint")]
    assert back["checkpoint"] < number and f"checkpoint {number} in " in back["unusable"][0], back


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(400, 406))
def test_death_during_another_recovery_loses_and_repeats_nothing(tmp_path, seed):
    """Another server, the same one again, a worker, the master: at any moment of the recovery."""
    chance = random.Random(seed)

    def hurt(job):
        told = []
        for _ in range(4):
            before, saved = lives(job, "server-1"), job.status.checkpoints.number
            job.kill("server-1")
            second = chance.choice(["server-0", "server-1", "worker-0", "master"])
            time.sleep(chance.uniform(0.0, 2.0))
            told.append((second, job.kill(second)))
            job.until(lambda _, before=before: lives(job, "server-1") > before)
            job.until(lambda status, saved=saved: job.over or status.checkpoints.number > saved)
        return told

    _, done, wrong = run(tmp_path, seed, batches=2500, hurt=hurt)
    print(f"seed {seed}: {done}")
    assert not wrong, (done, wrong)


@pytest.mark.timeout(400)
def test_resumed_job_without_an_own_checkpoint_restores_from_its_origin(tmp_path):
    ids = counting.draw(np.random.default_rng(31), 300 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    first = spec(servers=1, checkpoints=CheckpointRules(every_s=0.5))
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.25], spec=first, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.checkpoints.number and status.samples > 8 * BATCH)
        job.stop()
        stopped = job.wait()
    assert stopped.phase is JobPhase.STOPPED and 0 < stopped.samples < len(ids), stopped
    where, number = str(job.files.checkpoints), stopped.checkpoints.number
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "counts").write_text("no folder: it gets no checkpoint of its own")
    rules = CheckpointRules(
        every_s=0.5,
        folder=str(tmp_path / "full"),
        resume=where,
        resume_number=number,
        resume_run=checkpoint_io.read(where, number).run,
        numbers_after=number,
    )
    with LocalCluster(
        script, [tmp_path, 1, BATCH, 0.25], spec=spec(checkpoints=rules), folder=tmp_path / "more"
    ) as job:
        job.until(lambda status: status.samples >= stopped.samples + 8 * BATCH)
        assert not job.status.checkpoints.number and job.kill("server-1")
        job.until(lambda _: lives(job, "server-1") > 1)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == counting.told_samples(job) == len(ids), status
    assert not (wrong := counting.differences(tmp_path, ids, epochs=1, batch=BATCH)), wrong
    (back,) = [event for event in job.story if event["event"] == "ready" and event["incarnation"] == 1]
    assert (back["checkpoint"], back["where"]) == (number, where) and back["samples_again"] > 0
    decisions = [str(event["what"]) for event in job.story if event["event"] == "decision"]
    assert any(f"checkpoint {number}, from which the job continued" in what for what in decisions), decisions
