"""Several workers on several servers against one process: the same model in bsp, as good a model in async."""

import json
import statistics
import subprocess
import sys

import numpy as np
import pytest

from tests.process import running

pytestmark = pytest.mark.process

IN_STEP = """
import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.clicklog.dataset import ClickLog

torch.manual_seed(0)
data = ClickLog(1200)
job = st.join()
torch.manual_seed(job.rank)  # ranks begin with different weights: rank 0's are the ones that count
model = zoo.model("deepfm", tables=data.tables, dim=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=100, sync="bsp", epochs=2)
for x, y in batches:
    optimizer.zero_grad()
    zoo.loss(model(x), y).backward()
    optimizer.step()
if job.rank == 0:
    np.savez("state.npz", **{name: value.numpy() for name, value in model.state_dict().items()})
"""

ASYNC = """
import json
import sys

import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo import metrics
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.population import LogSpec

seed, samples = int(sys.argv[1]), int(sys.argv[2])
train, test = ClickLog(samples, spec=LogSpec(seed=seed)).split(0.2)
torch.manual_seed(seed)
model = zoo.model("widedeep", tables=train.tables, dim=8, hidden=(32,))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
job = st.join(seed=seed)
model, optimizer, batches = job.prepare(model, optimizer, train, batch_size=128)
for x, y in batches:
    optimizer.zero_grad()
    zoo.loss(model(x), y).backward()
    optimizer.step()
if job.rank == 0:
    model.eval()
    with torch.no_grad():
        parts = [test.batch(part) for part in np.array_split(np.arange(len(test)), 10)]
        scores = torch.cat([model(x) for x, _ in parts])
    with open("auc.json", "w") as file:
        json.dump(metrics.auc(torch.cat([y for _, y in parts]), scores), file)
"""


def train_alone(folder, *arguments):
    subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=folder,
        check=True,
        timeout=600,
        env={"PYTHONPATH": str(running.ROOT), "PATH": "/usr/bin:/bin"},
    )


def train_together(folder, *arguments, servers, workers):
    options = ["--servers", str(servers), "--workers", str(workers)]
    with running.springtide("run", "train.py", *options, "--", *arguments, folder=folder) as job:
        code, out = job.finish()
    assert code == 0, (out, job.said)


def saved(folder):
    with np.load(folder / "state.npz") as state:
        return dict(state)


@pytest.mark.soak  # in CI: several ranks in one process (tests/unit/worker/bsp/batch_order)
def test_three_bsp_ranks_give_the_model_of_one_process(tmp_path):
    running.script(tmp_path, IN_STEP)
    train_alone(tmp_path)
    expected = saved(tmp_path)
    train_together(tmp_path, servers=2, workers=3)
    found = saved(tmp_path)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def auc_gap(folder, *, seed, samples, workers):
    """How much better the single process is."""
    running.script(folder, ASYNC)
    arguments = (str(seed), str(samples))
    train_alone(folder, *arguments)
    single = json.loads((folder / "auc.json").read_text())
    (folder / "auc.json").unlink()
    train_together(folder, *arguments, servers=2, workers=workers)
    return single - json.loads((folder / "auc.json").read_text())


@pytest.mark.soak
def test_two_async_workers_come_within_0_02_of_the_auc_of_one_process(tmp_path):
    assert abs(auc_gap(tmp_path, seed=0, samples=20_000, workers=2)) < 0.02


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_four_async_workers_come_within_0_002_of_the_auc_of_one_process(tmp_path):
    gaps = [auc_gap(tmp_path, seed=seed, samples=100_000, workers=4) for seed in range(5)]
    assert abs(statistics.mean(gaps)) <= 0.002, gaps
