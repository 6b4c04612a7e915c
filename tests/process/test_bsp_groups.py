"""bsp groups that lose members and change size lose and repeat nothing, with the same model."""

import random
import subprocess
import sys

import numpy as np
import pytest

from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import group_counting, running
from tests.process.group_counting import until_back, until_formed

pytestmark = pytest.mark.process

MODEL = """
import time

import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.clicklog.dataset import ClickLog

data = ClickLog(12_000)
job = st.join()
torch.manual_seed(job.rank)  # ranks begin with different weights: rank 0's are the ones that count
model = zoo.model("deepfm", tables=data.tables, dim=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=100, sync="bsp", num_workers=0)
for x, y in batches:
    time.sleep(0.02 if not job.alone else 0)
    optimizer.zero_grad()
    zoo.loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
if job.rank == 0:
    np.savez("state.npz", **{name: value.numpy() for name, value in model.state_dict().items()})
"""


def spec(**more):
    given = dict(workers=2, servers=2, sync="bsp", heartbeat_s=0.2, silence_s=30.0, relaunches=1000, backoff_s=0.0)
    return JobSpec(name="group", **(given | more))


def count(folder, seed, **how):
    """Count under faults; the last status, and what the counts are off by."""
    return group_counting.count(folder, spec, seed, **how)


@pytest.mark.timeout(400)
def test_bsp_group_counts_once_after_a_lost_rank_and_rescaling(tmp_path):
    def hurt(job):
        job.kill_each("worker-0")
        until_back(job, 1)
        job.scale(3)
        until_formed(job, 3)
        job.scale(2)
        until_formed(job, 2)

    status, wrong = count(tmp_path, 1, batches=250, hurt=hurt, pause_s=0.3)
    assert not wrong, wrong
    assert status.roles.relaunches == 1


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_bsp_group_that_lost_a_rank_gives_the_model_of_one_process(tmp_path):
    script = tmp_path / running.script(tmp_path, MODEL)
    subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        check=True,
        timeout=600,
        env={"PYTHONPATH": str(running.ROOT), "PATH": "/usr/bin:/bin"},
    )
    expected = dict(np.load(tmp_path / "state.npz"))
    (tmp_path / "state.npz").unlink()
    script.write_text(MODEL.replace('"state.npz"', repr(str(tmp_path / "state.npz"))))
    with LocalCluster(script, spec=spec(), folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 0)
        job.kill_each("worker-0")  # the one whose weights all began with
        until_back(job, 1)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    found = dict(np.load(tmp_path / "state.npz"))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def have_the_model(job):
    """Surviving members of the last formed group; without checkpoints one of them must live.

    A worker that the group goes on without lives a little longer, and one that has just come has nothing yet.
    """
    here, members = set(), set()
    for event in job.story:
        role = str(event.get("role", ""))
        if event["event"] == "joined" and role.startswith("worker-"):
            here.add(role)
        elif event["event"] in ("finished", "fenced"):
            here.discard(role)
            members.discard(role)
        elif event["event"] == "decision" and (formed := group_counting.FORMED.match(str(event["what"]))):
            members = set(sorted(here)[: int(formed[1])])
    return members


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(200, 210))
def test_random_kills_and_rescaling_of_a_bsp_group_lose_and_repeat_nothing(tmp_path, seed):
    chance = random.Random(seed)
    print("seed", seed)

    def hurt(job):
        for _ in range(8):
            group = (
                int(job.status.master.decision.rpartition("number ")[2] or 1)
                if "number" in job.status.master.decision
                else 0
            )
            before = job.status.samples
            alive = sorted(role for role in job.pids() if role.startswith("worker-"))
            holders = have_the_model(job)
            if chance.random() < 0.3:
                job.scale(chance.randint(2, 4))
            elif len(alive) > 1 and holders:
                some = chance.sample(alive, chance.randint(1, len(alive) - 1))
                for role in some if not holders <= set(some) else sorted(set(some) - {min(holders)}):
                    print(group, "kill", role, job.kill(role))
            job.until(lambda status, before=before: job.over or status.samples > before + chance.randint(200, 2000))

    _, wrong = count(tmp_path, seed, batches=6000, hurt=hurt, workers=3)
    assert not wrong, wrong
