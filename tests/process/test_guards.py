"""Guards of servers: impending out-of-memory and slow machines.

Needs control groups that this user may make, as tests/process/test_limits.py does.
"""

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import GuardRules, JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, running
from tests.process.test_limits import limited as limited

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SCRIPT = """
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn

import springtide as st

folder = pathlib.Path(sys.argv[1])
hurry = folder / "hurry"
samples, ids, dim = map(int, sys.argv[2:5])
pause_s, later_s = map(float, sys.argv[5:7])
data = torch.arange(samples * ids).reshape(samples, ids)  # every id once: rows grow to the end


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = st.EmbeddingBag(dim, init="zeros")

    def forward(self, x):
        return self.table(x)[:, 0].sum()


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
dataset = torch.utils.data.TensorDataset(data)
model, optimizer, batches = job.prepare(model, optimizer, dataset, batch_size=128, shuffle=False)
for step, (x,) in enumerate(batches):
    time.sleep(0.0 if hurry.exists() else pause_s if step < 100 else later_s)  # what a real model would compute
    optimizer.zero_grad()
    (-model(x)).backward()
    optimizer.step()
if job.rank == 0:
    keys, rows = model.table.springtide_binding.client.scan(model.table.springtide_binding.tables[0].name)
    np.savez(folder / "counts.npz", keys=keys, counts=rows[:, 0])
"""


def counts_are_exact(folder, rows):
    found = np.load(folder / "counts.npz")
    return len(found["keys"]) == rows and set(found["counts"].tolist()) == {1.0}


def decisions(job):
    return [f"{event['what']}: {event['why']}" for event in job.story if event["event"] == "decision"]


def run_growing_job(tmp_path, *, guards, **more):
    """A job whose tables outgrow one server's memory, slowly after the first third so that another can start."""
    rules = CheckpointRules(every_s=5.0)
    spec = JobSpec(name="grows", server_memory=220 << 20, guards=guards, checkpoints=rules, slots=256, **more)
    script = tmp_path / running.script(tmp_path, SCRIPT)
    return LocalCluster(script, [tmp_path, 40_000, 8, 128, 0.02, 0.2], spec=spec, folder=tmp_path)


@pytest.mark.parametrize("sync", ["async", pytest.param("bsp", marks=pytest.mark.soak)])
def test_servers_are_added_before_memory_runs_out(tmp_path, limited, sync):
    def added():
        return [text for text in decisions(job) if text.startswith("scale from 1 to")]

    with run_growing_job(tmp_path, guards=GuardRules(), sync=sync) as job:
        decided = job.until(lambda _: added())
        job.until(lambda status: job.settled(status, status.roles.servers.wanted, known=0))
        counting.hurry(tmp_path)
        ended = job.wait()

    assert ended.phase is JobPhase.FINISHED, ended.why
    assert decided.samples < 0.6 * ended.samples, "there is room for more rows still"
    assert "memory would run out: server-0: rows grow to" in added()[0]
    assert not any("memory" in str(event.get("how", "")) for event in job.story if event["event"] == "exited")
    assert counts_are_exact(tmp_path, 320_000)


@pytest.mark.soak
def test_unguarded_job_is_killed_for_its_memory_and_recovers(tmp_path, limited):
    with run_growing_job(tmp_path, guards=GuardRules(memory=False)) as job:
        ended = job.wait()

    assert any("memory" in str(event.get("how", "")) for event in job.story if event["event"] == "exited")
    assert any(text.startswith("scale from 1 to 2 servers") for text in decisions(job)), decisions(job)
    assert ended.phase is JobPhase.FINISHED, ended.why
    assert counts_are_exact(tmp_path, 320_000)


@pytest.mark.soak
@pytest.mark.parametrize(("sync", "workers"), [("async", 2), ("bsp", 1)])  # gradients of a group are means: one counts
def test_server_on_a_slow_machine_is_replaced(tmp_path, limited, sync, workers):
    spec = JobSpec(
        name="slow",
        servers=2,
        workers=workers,
        sync=sync,
        server_cpu=1.0,
        checkpoints=CheckpointRules(every_s=5.0),
        slots=256,
    )
    script = tmp_path / running.script(tmp_path, SCRIPT)
    with LocalCluster(script, [tmp_path, 300_000, 8, 16, 0.01, 0.01], spec=spec, folder=tmp_path) as job:
        job.until(lambda status: status.samples > 20_000)
        assert job.throttle("server-1", 0.03)
        ended = job.wait()

    assert ended.phase is JobPhase.FINISHED, ended.why
    assert any(text.startswith("replace server-1 by server-2") for text in decisions(job)), decisions(job)
    assert any(text.startswith("release server-1") for text in decisions(job)), decisions(job)
    assert counts_are_exact(tmp_path, 2_400_000)
