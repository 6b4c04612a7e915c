"""TorchRec collections in real jobs: each id of each bag counts once when workers or servers are killed."""

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, framework_jobs, group_counting

pytestmark = [pytest.mark.process, pytest.mark.extra("torchrec")]

BATCH, ROWS, BATCHES = 32, 40, 200

SCRIPT = """
import os
import pathlib
import sys
import time
import warnings

warnings.simplefilter("ignore")  # what TorchRec and FBGEMM warn about on import is theirs
import numpy as np
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import springtide as st

folder, rows, batch, pause_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
hurry = folder / "hurry"


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        zeros = dict(num_embeddings=rows, init_fn=nn.init.zeros_)
        self.bags = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(name="both", embedding_dim=2, feature_names=["a", "b"], **zeros),
                EmbeddingBagConfig(name="third", embedding_dim=3, feature_names=["c"], **zeros),
            ],
        )
        self.rows = EmbeddingCollection(
            tables=[EmbeddingConfig(name="first", embedding_dim=1, feature_names=["a"], **zeros)]
        )
        self.steps = nn.Parameter(torch.zeros(3))

    def forward(self, features):
        return self.bags(features).values().sum() + self.rows(features)["a"].values().sum()


class Bags(torch.utils.data.Dataset):
    def __init__(self):
        kept = np.load(folder / "bags.npz")
        self.values, self.ends = torch.from_numpy(kept["values"]), kept["lengths"].cumsum()
        self.lengths = torch.from_numpy(kept["lengths"])

    def __len__(self):
        return len(self.lengths) // 3

    def __getitem__(self, index):
        bags = range(3 * index, 3 * index + 3)
        return [self.values[self.ends[bag] - int(self.lengths[bag]) : self.ends[bag]] for bag in bags]


def collate(samples):
    columns = list(zip(*samples))
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["a", "b", "c"],
        values=torch.cat([bag for column in columns for bag in column]),
        lengths=torch.tensor([len(bag) for column in columns for bag in column]),
    ), torch.ones(len(samples))


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer, batches = job.prepare(model, optimizer, Bags(), batch_size=batch, collate_fn=collate, seed=7)
for features, samples in batches:
    time.sleep(0.0 if hurry.exists() else pause_s)
    optimizer.zero_grad()
    (-model(features) / len(samples) - model.steps.sum()).backward()
    optimizer.step()
if not job.leaving:
    state = model.state_dict()
    assert torch.equal(model.rows.embeddings["first"].weight.detach(), state["rows.embeddings.first.weight"])
    part = folder / f"counts-{job.rank}-{os.getpid()}.npz"
    tables = {name.split(".")[-2]: table for name, table in state.items() if "weight" in name}
    np.savez(part, **tables, steps=state["steps"])
    part.rename(folder / "counts.npz")
"""


def draw(folder, rng):
    """Three bags a sample, of up to three ids each; how often each table meets each id."""
    lengths = rng.integers(0, 4, (BATCHES * BATCH, 3))
    values = rng.zipf(1.3, lengths.sum()) % ROWS
    np.savez(folder / "bags.npz", values=values, lengths=lengths.reshape(-1))
    column = np.repeat(np.tile(np.arange(3), len(lengths)), lengths.reshape(-1))
    a, b, c = (np.bincount(values[column == one], minlength=ROWS) for one in range(3))
    return {"both": a + b, "third": c, "first": a}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sync", ["async", pytest.param("bsp", marks=pytest.mark.soak)])
def test_collections_count_every_id_once_though_worker_and_server_are_killed(tmp_path, sync):
    expected = draw(tmp_path, np.random.default_rng(3))
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = JobSpec(
        name="bags",
        workers=2,
        servers=2,
        sync=sync,
        heartbeat_s=0.1,
        silence_s=30.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    arguments = [tmp_path, ROWS, BATCH, 0.5]
    with (
        framework_jobs.warm_starts("torchrec") as warm,
        LocalCluster(tmp_path / "train.py", arguments, spec=spec, folder=tmp_path / "runs", warm=warm) as job,
    ):
        job.until(lambda status: status.samples > 0)
        job.kill_each("worker-1", "server-0")
        job.until(lambda _: lives(job, "worker-1") > 1 and lives(job, "server-0") > 1)
        group_counting.until_trained(job)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == BATCHES * BATCH, status
    counts = np.load(tmp_path / "counts.npz")
    assert (counts["steps"] == BATCHES).all()
    for table, times in expected.items():
        assert (counts[table] * BATCH == times[:, None]).all(), table


def lives(job, role):
    return sum(event["event"] == "joined" and event["role"] == role for event in job.story)
