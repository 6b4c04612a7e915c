"""A lightning.Trainer in real jobs: every sample counts once an epoch when workers and servers are killed, all workers
stop with rank 0, and the best checkpoint is one that plain Lightning reads.

A table counts ids as in counting.py. The validation metric, a mean over both workers' parts of the data, gets better
until epoch 1, so early stopping ends the training after epoch 2, long before `max_epochs`.
"""

import numpy as np
import pytest
import torch

from tests.process import counting, framework_jobs

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
from torchmetrics import MeanMetric

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
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        with open(folder / "batches", "a") as file:
            told = [self.global_rank, self.current_epoch, self.optimizers().param_groups[0]["weight_decay"]]
            print(json.dumps(told), file=file)
        self.log("ids", float(len(batch[0])))
        return -(self.small(batch[0] % 50).sum() + self.steps.sum())

    def on_train_batch_end(self, *_):
        hold(f"in {self.current_epoch}", self.trainer.strategy.job)

    def validation_step(self, batch, batch_idx):
        own = -1.0 if self.global_rank else 1.0  # each worker validates half of the samples
        self.log("loss", abs(self.current_epoch - 1) + own)
        self.log("trained", self.small(batch[0] % 50).sum(), reduce_fx="sum")
        self.log("last", batch[0].max().float(), reduce_fx="max", sync_dist=True)
        self.mean(batch[0].float())
        self.log("mean", self.mean)

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


@pytest.fixture
def warm():
    with framework_jobs.warm_starts("lightning.pytorch") as client:
        yield client


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_trainer_counts_each_sample_once_and_stops_as_rank_0_decides(tmp_path, warm, sync):
    ids = counting.draw(np.random.default_rng(5), SAMPLES)
    (tmp_path / "train.py").write_text(SCRIPT)
    np.save(tmp_path / "ids.npy", ids)
    framework_jobs.run_with_faults(tmp_path, [BATCH, sync], sync, warm)
    expected = np.bincount(ids[:, 0] % 50, minlength=50) * (0.5 if sync == "bsp" else 1.0)  # a group takes the mean
    for rank in range(2):
        counts = np.load(tmp_path / f"counts-{rank}.npz")
        assert (counts["small"][:, 0] == EPOCHS * expected).all()
        assert (counts["steps"] == EPOCHS * SAMPLES / BATCH).all()
    assert sorted(told[:3] for told in framework_jobs.lines(tmp_path, "ends")) == [
        [0, EPOCHS, EPOCHS],
        [1, EPOCHS, EPOCHS],
    ]
    for _, epoch, seen in framework_jobs.lines(tmp_path, "validations"):
        assert seen["loss"] == abs(epoch - 1), "every worker decides with the mean of all parts"
        assert seen["trained"] == (epoch + 1) * expected.sum(), "all parts are validated once, after all updates"
        assert (seen["last"], seen["mean"]) == (49.0, 24.5)
    [best] = (tmp_path / "best").iterdir()
    assert {path for *_, path in framework_jobs.lines(tmp_path, "ends")} == {str(best)} and best.name == "epoch=1.ckpt"
    weights = torch.load(best, weights_only=True)["state_dict"]["small.weight"]
    assert (weights[:, 0].numpy() == 2 * expected).all(), "the best checkpoint is the model that was validated"
