"""Workers divide a validation and decide together: every worker gets the same sums when one is killed in its part.

A table counts ids as in counting.py, so the sum over the validated ids after epoch n is known. Worker 1 decides in the
second epoch that training ends.
"""

import json

import pytest

from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster

pytestmark = pytest.mark.process

SAMPLES = 60

SCRIPT = """
import json
import pathlib
import sys
import time

import torch

import springtide as st

folder, sync = pathlib.Path(sys.argv[1]), sys.argv[2]


def hold(what):
    (folder / f"{what}, rank {job.rank}").touch()
    while (folder / f"hold {what}, rank {job.rank}").exists():
        if job.leaving:
            (folder / f"rank {job.rank} leaves").touch()
        time.sleep(0.01)


job = st.join()
model = torch.nn.EmbeddingBag(SAMPLES, 1, mode="sum")
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
data = torch.utils.data.TensorDataset(torch.arange(SAMPLES).reshape(-1, 1))
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=6, sync=sync)
for epoch in job.epochs(10):
    for (ids,) in batches:
        optimizer.zero_grad()
        (-model(ids).sum()).backward()
        optimizer.step()
    total = count = 0
    with torch.no_grad():
        for (ids,) in torch.utils.data.DataLoader(job.divide(data), batch_size=4):
            total, count = total + model(ids).sum(), count + len(ids)
            hold(f"validating {epoch}")
    result = job.reduce({"total": total, "count": count})
    stop = job.reduce(job.rank == 1 and epoch == 1, "max")
    with open(folder / "results", "a") as file:
        print(json.dumps([job.rank, epoch, result["total"].item(), result["count"], stop]), file=file)
    if stop:
        break
"""


def result_lines(folder):
    path = folder / "results"
    return sorted(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else []


@pytest.fixture
def start(tmp_path):
    def start(sync="async", workers=2):
        (tmp_path / "train.py").write_text(SCRIPT.replace("SAMPLES", str(SAMPLES)))
        spec = JobSpec(name="job", workers=workers, heartbeat_s=0.1, relaunches=10, backoff_s=0.0, slots=64, sync=sync)
        return LocalCluster(tmp_path / "train.py", [tmp_path, sync], spec=spec, folder=tmp_path / "runs")

    return start


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_worker_killed_in_its_part_of_a_validation_repeats_it(tmp_path, start, sync):
    hold, there = tmp_path / "hold validating 0, rank 1", tmp_path / "validating 0, rank 1"
    hold.touch()
    with start(sync) as job:
        job.until(lambda _: there.exists())
        assert job.kill("worker-1")
        there.unlink()
        job.until(lambda _: there.exists())
        assert not result_lines(tmp_path), "worker 0 waits for the part of worker 1"
        hold.unlink()
        assert job.wait().phase is JobPhase.FINISHED, job.status.why
    share = 0.5 if sync == "bsp" else 1.0  # a group takes the mean
    expected = [[epoch, SAMPLES * share * (epoch + 1), SAMPLES, epoch == 1] for epoch in range(2)]
    assert result_lines(tmp_path) == [[rank, *line] for rank in range(2) for line in expected]


def test_worker_removed_in_its_part_takes_it_out_of_the_sums(tmp_path, start):
    hold = tmp_path / "hold validating 0, rank 1"
    hold.touch()
    with start() as job:
        job.until(lambda _: (tmp_path / "validating 0, rank 1").exists())
        job.scale(1)
        job.until(lambda _: (tmp_path / "rank 1 leaves").exists())
        assert not result_lines(tmp_path), "worker 0 waits for worker 1 until it has ended"
        hold.unlink()
        assert job.wait().phase is JobPhase.FINISHED, job.status.why
    half = SAMPLES // 2
    alone = [[0, epoch, SAMPLES * (epoch + 1), SAMPLES, False] for epoch in range(1, 10)]
    assert result_lines(tmp_path) == [[0, 0, half, half, False], *alone]
