"""Registered objects of a script resume after a kill and in a resumed run."""

import numpy as np
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster

pytestmark = pytest.mark.process

SCRIPT = """
import sys
import time

import torch

import springtide as st

folder, pause_s = sys.argv[1], float(sys.argv[2])


class Seen:
    count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


job = st.join()
model = torch.nn.EmbeddingBag(10, 1, mode="sum")
own = torch.optim.SGD(model.parameters(), lr=1.0)
schedule = job.register(torch.optim.lr_scheduler.ExponentialLR(own, gamma=0.99))
seen = job.register(Seen(), name="seen")


def tell(when):
    with open(f"{folder}/told.txt", "a") as file:
        print(when, seen.count, own.param_groups[0]["lr"], file=file)


tell("begin")
data = torch.utils.data.TensorDataset(torch.randint(0, 10, (4000, 1)))
model, optimizer, batches = job.prepare(model, own, data, batch_size=10)
for batch in batches:
    time.sleep(pause_s)
    optimizer.zero_grad()
    model(batch[0]).sum().backward()
    optimizer.step()
    schedule.step()
    seen.count += 1
tell("end")
"""


def registered_values(folder):
    lines = [line.split() for line in (folder / "told.txt").read_text().splitlines()]
    return [(when, int(count), float(rate)) for when, count, rate in lines]


@pytest.mark.timeout(400)
def test_registered_objects_resume_after_a_kill_and_in_a_resumed_run(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    rules = CheckpointRules(every_s=0.5)
    spec = JobSpec(name="job", heartbeat_s=0.1, relaunches=10, backoff_s=0.0, slots=64, checkpoints=rules)
    with LocalCluster(tmp_path / "train.py", [tmp_path, 0.05], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples >= 500)
        assert job.kill("worker-0")
        job.until(lambda _: len(registered_values(tmp_path)) == 2)
        before = job.status.samples
        job.until(lambda status: status.samples > before)
        job.stop()
        assert job.wait().phase is JobPhase.STOPPED
    manifest = checkpoint_io.latest(str(job.files.root)).manifest
    first, again, end = registered_values(tmp_path)
    assert first == ("begin", 0, 1.0)
    assert again[0] == "begin" and again[1] > 0, "the relaunched worker has what the killed one had told"
    where = str(job.files.checkpoints)
    go_on = CheckpointRules(resume=where, resume_number=manifest.number, resume_run=manifest.run)
    spec = JobSpec(name="job", heartbeat_s=0.1, slots=64, checkpoints=go_on)
    with LocalCluster(tmp_path / "train.py", [tmp_path, 0.0], spec=spec, folder=tmp_path / "runs") as job:
        assert job.wait().phase is JobPhase.FINISHED
    _, _, _, resumed, last = registered_values(tmp_path)
    assert resumed == ("begin", *end[1:]), "a job that was stopped lost nothing of it"
    assert last[1] > resumed[1]
    for _, count, rate in registered_values(tmp_path):
        assert np.isclose(rate, 0.99**count), "rate and schedule agree"
