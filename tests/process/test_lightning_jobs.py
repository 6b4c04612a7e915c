"""A lightning.Trainer in real jobs: every sample counts once an epoch when workers and servers are killed, all workers
stop with rank 0, and the best checkpoint is one that plain Lightning reads.

A table counts ids as in counting.py. The validation metric gets better until epoch 1, so early stopping ends the
training after epoch 2, long before `max_epochs`.
"""

import json

import numpy as np
import pytest
import torch

from springtide import config
from springtide.checkpoint.format import checkpoint_io
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local import fork_server
from springtide.testing.cluster import LocalCluster
from tests import waiting
from tests.process import counting

pytestmark = [pytest.mark.process, pytest.mark.extra("lightning")]

SAMPLES, BATCH, EPOCHS = 120, 6, 3

SCRIPT = """
import json
import pathlib
import sys
import time
import warnings

warnings.simplefilter("ignore")  # what Lightning warns about is its own
import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import springtide as st
from springtide.integrations.lightning import SpringtideStrategy

folder, batch_size, sync = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def hold(what, job):
    while (folder / f"hold {what}").exists() and not job.leaving:
        (folder / f"{what}, rank {job.rank}").touch()
        time.sleep(0.01)


class Counter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.small = torch.nn.EmbeddingBag(50, 1, mode="sum")
        torch.nn.init.zeros_(self.small.weight)
        self.steps = torch.nn.Parameter(torch.zeros(3))

    def training_step(self, batch, batch_idx):
        with open(folder / "batches", "a") as file:
            told = [self.global_rank, self.current_epoch, self.optimizers().param_groups[0]["weight_decay"]]
            print(json.dumps(told), file=file)
        self.log("ids", float(len(batch[0])))
        return -(self.small(batch[0] % 50).sum() + self.steps.sum())

    def on_train_batch_end(self, *_):
        hold(f"in {self.current_epoch}", self.trainer.strategy.job)

    def validation_step(self, batch, batch_idx):
        # in an async job other ranks see an ever better loss: only rank 0's counts
        own = self.global_rank and sync == "async"
        best_first = -self.current_epoch if own else abs(self.current_epoch - 1)
        self.log("loss", float(best_first))
        self.log("trained", self.small(batch[0] % 50).sum(), reduce_fx="sum")

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            seen = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            with open(folder / "validations", "a") as file:
                print(json.dumps([self.global_rank, self.current_epoch, seen]), file=file)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)]


if __name__ == "__main__":
    ids = torch.from_numpy(np.load(folder / "ids.npy"))[:, :1]
    best = ModelCheckpoint(folder / "best", monitor="loss", filename="{epoch}")
    trainer = L.Trainer(
        max_epochs=10,
        accelerator="cpu",
        callbacks=[EarlyStopping("loss", patience=1), best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=SpringtideStrategy(sync=sync),
    )
    model = Counter()
    val = DataLoader(TensorDataset(torch.arange(50).reshape(-1, 1)), batch_size=25)
    trainer.fit(model, DataLoader(TensorDataset(ids), batch_size=batch_size, shuffle=True), val)
    job = trainer.strategy.job
    told = [job.rank, trainer.current_epoch, trainer.lr_scheduler_configs[0].scheduler.last_epoch, best.best_model_path]
    with open(folder / "ends", "a") as file:
        print(json.dumps(told), file=file)
    state = model.state_dict()
    np.savez(folder / f"counts-{job.rank}.npz", small=state["small.weight"], steps=state["steps"])
"""


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture
def warm(monkeypatch):
    """A fork server that has imported Lightning, which takes each process several core-seconds."""
    monkeypatch.setattr(fork_server, "IMPORTS", (*fork_server.IMPORTS, "lightning.pytorch"))
    client = fork_server.ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
    plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
    environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
    client.begin(environment)
    waiting.until(lambda: client.suits(environment) or client._process.poll() is not None, "imports", within_s=240)
    yield client
    client.close()


def start(tmp_path, sync, rules, warm):
    spec = JobSpec(
        name="lightning",
        workers=2,
        servers=2,
        heartbeat_s=0.1,
        silence_s=30.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        checkpoints=rules,
        sync=sync,
    )
    return LocalCluster(tmp_path / "train.py", [tmp_path, BATCH, sync], spec=spec, folder=tmp_path / "runs", warm=warm)


def all_wait_at(folder, what, *ranks):
    return lambda _: all((folder / f"{what}, rank {rank}").exists() for rank in ranks)


def lives(job, role):
    return sum(event["event"] == "joined" and event["role"] == role for event in job.story)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sync", ["async", pytest.param("bsp", marks=pytest.mark.soak)])
def test_trainer_counts_each_sample_once_and_stops_as_rank_0_decides(tmp_path, warm, sync):
    ids = counting.draw(np.random.default_rng(5), SAMPLES)
    (tmp_path / "train.py").write_text(SCRIPT)
    np.save(tmp_path / "ids.npy", ids)
    for epoch in range(EPOCHS):
        (tmp_path / f"hold in {epoch}").touch()
    with start(tmp_path, sync, CheckpointRules(every_s=0.2), warm) as job:
        job.until(all_wait_at(tmp_path, "in 0", 0, 1))
        assert job.kill("worker-1")
        job.kill_each("server-0")
        job.until(lambda _: lives(job, "worker-1") > 1 and lives(job, "server-0") > 1)
        (tmp_path / "hold in 0").unlink()
        job.until(all_wait_at(tmp_path, "in 1", 0, 1))
        assert job.kill("worker-0")
        (tmp_path / "hold in 1").unlink()
        job.until(all_wait_at(tmp_path, "in 2", 0, 1))
        job.stop()
        if sync == "bsp":  # a rank hears of it only when the group has trained what it had begun
            (tmp_path / "hold in 2").unlink()
        assert job.wait().phase is JobPhase.STOPPED, job.status.why
    (tmp_path / "hold in 2").unlink(missing_ok=True)
    manifest = checkpoint_io.latest(str(job.files.root)).manifest
    where = str(job.files.checkpoints)
    rules = CheckpointRules(resume=where, resume_number=manifest.number, resume_run=manifest.run)
    with start(tmp_path, sync, rules, warm) as job:
        assert job.wait().phase is JobPhase.FINISHED, job.status.why
    expected = np.bincount(ids[:, 0] % 50, minlength=50) * (0.5 if sync == "bsp" else 1.0)  # a group takes the mean
    for rank in range(2):
        counts = np.load(tmp_path / f"counts-{rank}.npz")
        assert (counts["small"][:, 0] == EPOCHS * expected).all()
        assert (counts["steps"] == EPOCHS * SAMPLES / BATCH).all()
    assert sorted(told[:3] for told in lines(tmp_path, "ends")) == [[0, EPOCHS, EPOCHS], [1, EPOCHS, EPOCHS]]
    for _, epoch, seen in lines(tmp_path, "validations"):
        assert seen["loss"] == abs(epoch - 1), "every worker decides with the metrics of rank 0"
    [best] = (tmp_path / "best").iterdir()
    assert {path for *_, path in lines(tmp_path, "ends")} == {str(best)} and best.name == "epoch=1.ckpt"
    weights = torch.load(best, weights_only=True)["state_dict"]["small.weight"]
    assert (weights[:, 0].numpy() == 2 * expected).all(), "the best checkpoint is the model that was validated"
