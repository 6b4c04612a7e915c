"""bsp checkpoints are exact at a step: a rollback or resume gives the model of an undisturbed run."""

import random

import numpy as np
import pytest

from springtide import export, zoo
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import open_store
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.export import exporter
from springtide.testing.cluster import LocalCluster
from springtide.zoo.clicklog.dataset import ClickLog
from tests.process import counting, disks, group_counting
from tests.process.group_counting import last_formed_group, until_back

pytestmark = pytest.mark.process

MODEL = """
import pathlib
import sys
import time

import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.clicklog.dataset import ClickLog

folder, pause_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
hurry = folder / "hurry"
data = ClickLog(3_000)
job = st.join()
torch.manual_seed(job.rank)
model = zoo.model("deepfm", tables=data.tables, dim=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=40, sync="bsp", num_workers=0)
with open(folder / f"losses-{job.rank}.txt", "a") as losses:
    for x, y in batches:
        time.sleep(0.0 if hurry.exists() else pause_s)
        optimizer.zero_grad()
        loss = zoo.loss(model(x), y)
        loss.backward()
        print(repr(loss.item()), file=losses, flush=True)  # a step that is broken off may have been saved nevertheless
        optimizer.step()
if not job.leaving:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    np.savez(folder / f"state-{job.rank}.npz", **state)
"""


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
    )
    return JobSpec(name="steps", **(given | more))


def train(folder, *, pause_s=0.0, meanwhile=lambda job: None, **more):
    """Train the model; return each rank's losses by step, and the final model if there is one."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(MODEL)
    with LocalCluster(script, [folder, pause_s], spec=spec(**more), folder=folder / "runs") as job:
        job.until(lambda status: status.samples > 0)
        meanwhile(job)
        counting.hurry(folder)
        status = job.wait()
    losses = [path.read_text().split() for path in sorted(folder.glob("losses-*.txt"))]
    made = folder / "state-0.npz"
    return status, losses, dict(np.load(made)) if made.exists() else {}


def kill_together(job, *lists):
    """List by list all roles at once, each time until the group trains again."""
    for roles in lists:
        _, before = last_formed_group(job)
        job.kill_each(*roles)
        until_back(job, before)


def exported(folder, manifest, url):
    """State of a plain model loaded from the checkpoint, tables and dense part."""
    exporter.make(open_store(folder), manifest, url, format="safetensors")
    plain = zoo.model("deepfm", tables=ClickLog(3_000).tables, dim=4)
    export.into(plain, url)
    return {name: value.numpy() for name, value in plain.state_dict().items()}


def same(expected, found):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def save(job):
    """Until a part of the steps is in a checkpoint."""
    job.until(lambda _: any(event["event"] == "checkpoint" and event.get("samples") for event in job.story))


def same_then_again(found, expected):
    """Whether the losses equal the expected ones up to a step, then again from an earlier step to the end."""
    same = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(map(len, (found, expected)))
    )
    again = found[same:]
    return again == expected[len(expected) - len(again) :] and len(found) >= len(expected)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("workers", "own"),
    [(1, True), pytest.param(2, True, marks=pytest.mark.soak), pytest.param(2, False, marks=pytest.mark.soak)],
)
def test_bsp_resume_and_server_loss_give_a_bit_identical_model(tmp_path, workers, own):
    """`own`: the resumed run has its own checkpoint when the server is lost; else it rolls back to the resumed one."""
    rules = CheckpointRules(every_s=0.3, keep=1000)
    _, quiet, expected = train(tmp_path / "quiet", pause_s=0.2, meanwhile=save, workers=workers, checkpoints=rules)
    folder = str(tmp_path / "quiet" / "runs" / "steps" / "checkpoints")
    saved = (checkpoint_io.read(folder, number) for number in sorted(checkpoint_io.numbers(open_store(folder))))
    manifest = next(one for one in saved if one.progress.step)
    assert manifest.progress.step < len(quiet[0]) == 75 and manifest.progress.samples == 40 * manifest.progress.step
    last = checkpoint_io.latest(folder).manifest
    assert last.progress.step == 75, "the last one has everything"
    same(expected, exported(folder, last, str(tmp_path / "exports")))

    def lose_a_server(job):
        job.until(lambda now: now.checkpoints.number if own else now.samples > manifest.progress.samples)
        _, before = last_formed_group(job)
        job.kill_each("server-1")
        until_back(job, before)

    every_s = 0.3 if own else 3600.0
    rules = CheckpointRules(
        every_s=every_s, resume=folder, resume_number=manifest.number, resume_run=manifest.run, numbers_after=1000
    )
    status, resumed, found = train(
        tmp_path / "second", pause_s=0.2, meanwhile=lose_a_server, workers=workers, checkpoints=rules
    )
    assert status.phase is JobPhase.FINISHED and status.samples == 3000, status
    for rank in range(workers):
        assert same_then_again(resumed[rank], quiet[rank][manifest.progress.step :])
    same(expected, found)


@disks.needs_root
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_bsp_server_loss_before_the_first_checkpoint_gives_a_bit_identical_model(tmp_path):
    _, quiet, expected = train(tmp_path / "quiet", workers=2)

    def lose_a_server(job):
        job.until(lambda now: now.samples > 400 and now.checkpoints.trouble)
        _, before = last_formed_group(job)
        job.kill_each("server-1")
        until_back(job, before)
        (small / "others").unlink()

    with disks.disk(tmp_path / "disk", "8m") as small:
        disks.fill(small / "others")
        rules = CheckpointRules(every_s=0.3, folder=str(small))
        status, found, model = train(
            tmp_path / "second", pause_s=0.03, meanwhile=lose_a_server, workers=2, checkpoints=rules
        )
    assert status.phase is JobPhase.FINISHED and status.samples == 3000 and status.checkpoints.number, status
    assert all(losses[-len(whole) :] == whole for losses, whole in zip(found, quiet, strict=True)), "all steps again"
    assert all(len(losses) > len(whole) for losses, whole in zip(found, quiet, strict=True))
    same(expected, model)


def count(folder, seed, **how):
    """Count under faults, from the first checkpoint on; the last status, and what the counts are off by."""
    return group_counting.count(folder, spec, seed, begun=lambda status: status.checkpoints.number, **how)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scaled", ["before the loss", pytest.param("after the loss", marks=pytest.mark.soak)])
def test_server_added_during_a_bsp_rollback_joins_at_the_checkpoint_step(tmp_path, scaled):
    def hurt(job):
        _, before = last_formed_group(job)
        if scaled == "before the loss":
            job.scale(servers=3)
            job.until(lambda _: any(event["event"] == "ready" and event["role"] == "server-2" for event in job.story))
        (tmp_path / "wait").touch()
        job.kill_each("server-0")
        if scaled == "after the loss":
            job.until(lambda _: any(event["event"] == "lost" for event in job.story))
            job.scale(servers=3)
        job.until(
            lambda status: any(move["target"] == "server-2" for move in job.moves()) and not status.roles.slots_moving
        )
        (tmp_path / "wait").unlink()
        until_back(job, before)

    # slow steps: a shard takes seconds, and no slot moves to the new server before it is over
    _, wrong = count(tmp_path, 5, batches=150, hurt=hurt, pause_s=0.4)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_bsp_group_counts_once_after_loss_of_servers_workers_and_master(tmp_path):
    def hurt(job):
        lists = (["server-0"], ["server-1", "worker-0"], ["server-0", "master"], ["worker-0", "worker-1"])
        kill_together(job, *lists, ["server-0", "server-1", "worker-0", "worker-1", "master"])

    _, wrong = count(tmp_path, 3, batches=6000, hurt=hurt)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(300, 306))
def test_random_kills_in_a_bsp_job_lose_and_repeat_nothing(tmp_path, seed):
    chance = random.Random(seed)
    print("seed", seed)

    def hurt(job):
        for _ in range(6):
            if job.over:
                return
            (_, before), alive = last_formed_group(job), sorted(job.pids())
            chosen = chance.sample(alive, chance.randint(1, min(3, len(alive))))
            print("kill", [(role, job.kill(role)) for role in chosen])
            if chosen != ["master"]:
                until_back(job, before)
            seen = job.status.samples
            job.until(lambda status, seen=seen: job.over or status.samples > seen + chance.randint(100, 1000))

    _, wrong = count(tmp_path, seed, batches=8000, hurt=hurt)
    assert not wrong, wrong
