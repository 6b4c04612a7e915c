"""Jobs with hidden state train a bit-identical model with data workers; changes of that state are detected."""

import pathlib

import numpy as np
import pytest

from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCHES = 120
SCRIPT = """
import pathlib
import random
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import springtide as st

folder, pause_s, changes, lies = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "lies"
hurry = folder / "hurry"
TEACHER = [torch.ones(2)]
random.seed(3)


@dataclass
class Settings:
    temperature: float = 1.0


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx, grad):
        return grad


@st.stateless
def marked(raw):
    return raw + len(sys.argv)  # which is another number in a data worker


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(500, 4, mode="sum"), nn.Linear(6, 1)
        self.settings, self.calls = Settings(), {"count": 0}

    def forward(self, raw, dense):
        self.calls["count"] += 1
        raw = marked(raw) if lies else raw + 5
        ids = torch.unique(raw * 2654435761 % 500, return_inverse=True)[1].view(raw.shape)
        ids = (ids + (random.random() < 0.1) + self.calls["count"] // 50) % 500
        y = torch.log1p(dense * 3) / self.settings.temperature + TEACHER[0]
        rows = Through.apply(self.bag(ids))
        rows.register_hook(lambda grad: grad * 0.5)
        return self.top(torch.cat([rows, y], 1)).squeeze(1)


class Data(torch.utils.data.Dataset):
    def __init__(self):
        drawn = np.random.default_rng(5)
        self.raw = drawn.integers(0, 10_000, (16 * 120, 8))
        self.dense = drawn.random((16 * 120, 2), dtype=np.float32)
        self.weights = np.ones(16 * 120, np.float32)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, index):
        return self.raw[index], self.dense[index], self.dense[index].sum() * self.weights[index]


torch.manual_seed(1)
job = st.join()
model, data, losses = Model(), Data(), []
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=16, epochs=1, seed=7)
for number, (raw, dense, y) in enumerate(batches):
    time.sleep(0.0 if hurry.exists() else pause_s)
    split = vars(model).get("forward")
    model.settings.temperature *= 0.99
    TEACHER[0].data.lerp_(model.top.weight.data[0, :2], 0.05)
    if number == changes:
        data.weights[::2] = 0.5
    optimizer.zero_grad()
    loss = functional.mse_loss(model(raw, dense), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if number == 80:
        used = split.split_calls if split is not None and hasattr(split, "split_calls") else 0
        (folder / "used").write_text(str(used))
        while not (folder / "go-on").exists():
            time.sleep(0.01)
state = model.state_dict()
np.savez(folder / "model.npz", losses=losses, calls=model.calls["count"], teacher=TEACHER[0], **state)
"""


def train_job(folder, *, workers, changes=90, lies=False, made=10, seen=lambda job: None):
    """Train the program; return the job and its result. `seen` is called when most of it is trained."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    rules = JobSpec(
        name="hostile",
        workers=1,
        servers=1,
        heartbeat_s=0.1,
        seed=3,
        feeding=FeedRules(workers=workers, split="verify" if workers else "auto"),
    )
    arguments = [folder, 0.2, changes, "lies" if lies else "plain"]
    with LocalCluster(script, arguments, spec=rules, folder=folder) as job:
        if workers:
            job.until(lambda status: status.data.feed is not None and status.data.feed.made >= made)
        counting.hurry(folder)
        job.until(lambda status: pathlib.Path(folder, "used").exists() or status.phase.over)
        seen(job)
        (folder / "go-on").touch()
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    return job, dict(np.load(folder / "model.npz"))


@pytest.fixture(scope="module")
def model_without_data_workers(tmp_path_factory):
    """The model that the program trains without data workers."""
    return train_job(tmp_path_factory.mktemp("alone") / "job", workers=0)[1]


def assert_same(given, wanted):
    assert wanted.keys() == given.keys()
    for name, one in wanted.items():
        assert one.tobytes() == given[name].tobytes(), name


def why_without(job):
    (why,) = [each["why"] for each in job.story if each.get("what") == "train without data workers"]
    return why


@pytest.mark.timeout(400)
def test_hidden_state_job_trains_the_same_model_when_fed_and_reports_comparisons(model_without_data_workers, tmp_path):
    def seen(job):
        job.until(lambda status: status.data.feed is not None and status.data.feed.checked >= 20)

    job, given = train_job(tmp_path / "fed", workers=1, seen=seen)
    assert_same(given, model_without_data_workers)
    assert int((tmp_path / "fed" / "used").read_text()) > 20
    assert why_without(job) == "worker-0: the data set has changed since it was sent to data workers: dataset.weights"
    (checked,) = [each["checked"] for each in job.story if each["event"] == "finished"]
    assert checked >= 20


@pytest.mark.timeout(400)
def test_undetected_difference_is_found_by_comparison_and_the_model_kept(model_without_data_workers, tmp_path):
    job, given = train_job(tmp_path / "fed", workers=1, lies=True, made=1)
    assert_same(given, model_without_data_workers)
    why = why_without(job)
    assert "marked" in why and "computes other bits than the data worker sent" in why
