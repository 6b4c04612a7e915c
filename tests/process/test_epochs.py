"""Restarted workers and resumed runs continue in their epoch, and no epoch is empty.

The script is as a user writes it: a mean a loop, a schedule stepped once an epoch, a file an epoch. It waits in an
epoch as long as the test holds it there. Beside the rates a table counts: it must end up as if nothing had happened.
"""

import json

import numpy as np
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster

pytestmark = pytest.mark.process

EPOCHS, SAMPLES, BATCH = 5, 120, 6  # more batches an epoch than a shard of a bsp group has

SCRIPT = """
import json
import os
import pathlib
import sys
import time

import numpy as np
import torch

import springtide as st

folder, epochs, batch_size = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sync = sys.argv[4]


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = st.EmbeddingBag(1, init="zeros", optimizer="sgd", lr=1.0)
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return self.rows(ids).sum() + 0 * self.bias.sum()


def hold(what):
    while (folder / f"hold {what}").exists() and not job.leaving:
        (folder / f"{what}, rank {job.rank}").touch()
        time.sleep(0.01)


def train():
    total = n = 0
    for (ids,) in batches:
        with open(folder / "batches", "a") as file:
            told = [job.rank, epoch, batches.epoch, own.param_groups[0]["lr"], os.getpid()]
            print(json.dumps(told), file=file)
        optimizer.zero_grad()
        loss = -model(ids)
        loss.backward()
        optimizer.step()
        total, n = total + loss.item(), n + 1
        hold(f"in {batches.epoch}")
    return total / n


job = st.join()
model = Counter()
own = torch.optim.SGD(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.StepLR(own, step_size=1, gamma=0.5)
REGISTER
data = torch.utils.data.TensorDataset(torch.arange(SAMPLES).reshape(-1, 1))
model, optimizer, batches = job.prepare(model, own, data, batch_size=batch_size, sync=sync)
for epoch in LOOP:
    mean = train()
    hold(f"after {epoch} of {job.rank}")
    if not job.leaving:
        with open(folder / "results", "a") as file:
            print(json.dumps([job.rank, epoch, mean]), file=file)
    schedule.step()
print("the last mean", mean)
if not job.leaving:
    state = model.state_dict()
    np.savez(folder / "counts.npz", keys=state["rows.keys"], rows=state["rows.rows"])
"""

LOOPS = {"job.epochs": "job.epochs(epochs)", "plain": "range(epochs)"}


def write(folder, loop, *, registered):
    text = SCRIPT.replace("LOOP", LOOPS[loop]).replace("SAMPLES", str(SAMPLES))
    (folder / "train.py").write_text(text.replace("REGISTER", "job.register(schedule)" if registered else ""))


def lines(folder, name):
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_undisturbed(folder, *, share):
    """Check that the job's results equal those of an undisturbed one."""
    handed_out = lines(folder, "batches")
    assert {epoch for _, epoch, *_ in handed_out} == set(range(EPOCHS))
    for rank, epoch, by_data, rate, _ in handed_out:
        assert epoch == by_data, "the loop's number is the epoch's"
        assert rate == 0.5**epoch, f"rank {rank} trained epoch {epoch} at another rate than an undisturbed job"
    counts = np.load(folder / "counts.npz")
    assert sorted(counts["keys"]) == list(range(SAMPLES))
    assert set(counts["rows"][:, 0].tolist()) == {EPOCHS * share}, "each sample counts once an epoch"

    for rank in range(2):
        epochs = [epoch for who, epoch, _ in lines(folder, "results") if who == rank]
        assert epochs == list(range(EPOCHS)), "an epoch's result is written once, and none is written over"


def all_wait_at(folder, what, *ranks):
    """Whether all these ranks wait there."""
    return lambda _: all((folder / f"{what}, rank {rank}").exists() for rank in ranks)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("loop", "sync", "registered"),
    [
        ("job.epochs", "async", True),
        ("plain", "async", False),
        pytest.param("plain", "bsp", True, marks=pytest.mark.soak),
    ],
)
def test_killed_worker_and_resumed_run_continue_in_their_epoch(tmp_path, loop, sync, registered):
    write(tmp_path, loop, registered=registered)
    given = [tmp_path, EPOCHS, BATCH, sync]
    for what in ("in 0", "in 2", "after 3 of 0", "in 4"):
        (tmp_path / f"hold {what}").touch()
    rules = CheckpointRules(every_s=0.2)
    spec = JobSpec(
        name="job", workers=2, heartbeat_s=0.1, relaunches=10, backoff_s=0.0, slots=64, checkpoints=rules, sync=sync
    )
    with LocalCluster(tmp_path / "train.py", given, spec=spec, folder=tmp_path / "runs") as job:
        job.until(all_wait_at(tmp_path, "in 0", 0, 1))
        (tmp_path / "hold in 0").unlink()
        job.until(all_wait_at(tmp_path, "in 2", 0, 1))
        assert job.kill("worker-1")
        (tmp_path / "hold in 2").unlink()
        job.until(all_wait_at(tmp_path, "after 3 of 0", 0))
        assert job.kill("worker-0"), "behind its loop, in an epoch that is trained"
        (tmp_path / "after 3 of 0, rank 0").unlink()
        job.until(all_wait_at(tmp_path, "after 3 of 0", 0))
        job.stop()
        if sync == "bsp":  # a rank hears of it only when the group has trained what it had begun
            (tmp_path / "hold after 3 of 0").unlink()
            (tmp_path / "hold in 4").unlink()
        assert job.wait().phase is JobPhase.STOPPED
    manifest = checkpoint_io.latest(str(job.files.root)).manifest
    assert [manifest.scripts.places[rank].epoch for rank in range(2)] == [4 if sync == "bsp" else 3, 4]
    where = str(job.files.checkpoints)
    go_on = CheckpointRules(resume=where, resume_number=manifest.number, resume_run=manifest.run)
    spec = JobSpec(name="job", workers=2, heartbeat_s=0.1, slots=64, checkpoints=go_on, sync=sync)
    for left in tmp_path.glob("hold *"):
        left.unlink()
    with LocalCluster(tmp_path / "train.py", given, spec=spec, folder=tmp_path / "runs") as job:
        assert job.wait().phase is JobPhase.FINISHED, job.status.why
    assert_undisturbed(tmp_path, share=0.5 if sync == "bsp" else 1.0)  # a group's gradient is the mean of its ranks'
