"""Loops of Accelerate and of transformers.Trainer in real jobs: every sample counts once an epoch when workers and
servers are killed, and all workers stop together after the third epoch.

A table counts ids as in counting.py. In the loop of Accelerate, rank 1 decides to stop. The Trainer's evaluation gets
better until epoch 1, as a mean over both workers' parts, so early stopping ends the training after epoch 2.
"""

import numpy as np
import pytest

from tests.process import counting, framework_jobs

pytestmark = [pytest.mark.process, pytest.mark.soak]

SAMPLES, BATCH, EPOCHS = 120, 6, 3

HEAD = """
import json
import pathlib
import sys
import time
import warnings

warnings.simplefilter("ignore")  # what the frameworks warn about is their own
import numpy as np
import torch

folder, batch_size, sync = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def hold(what, job):
    while (folder / f"hold {what}").exists() and not job.leaving:
        (folder / f"{what}, rank {job.rank}").touch()
        time.sleep(0.01)


def tell(name, *values):
    with open(folder / name, "a") as file:
        print(json.dumps(values), file=file)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.small = torch.nn.EmbeddingBag(50, 1, mode="sum")
        torch.nn.init.zeros_(self.small.weight)
        self.steps = torch.nn.Parameter(torch.zeros(3))
        self.epoch, self.rank, self.parts = 0, 0, 1

    def forward(self, ids, labels=None):
        if not self.training:  # each rank evaluates half of the samples, so the mean is right
            loss = abs(self.epoch - 1) + (1.0 if self.rank else -1.0)
            return {"loss": torch.tensor(loss), "logits": self.small(ids % 50)}
        return {"loss": -(self.parts * self.small(ids % 50).sum() + self.steps.sum())}


def save_counts(model, rank):
    state = model.state_dict()
    np.savez(folder / f"counts-{rank}.npz", small=state["small.weight"], steps=state["steps"])


ids = torch.from_numpy(np.load(folder / "ids.npy"))[:, :1]
model = Counter()
"""

ACCELERATE = """
from springtide.integrations.accelerate import Accelerator

accelerator = Accelerator(prepare={"sync": sync})
job = accelerator.job
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=batch_size, shuffle=True)
model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(10):
    for (part,) in batches:
        optimizer.zero_grad()
        accelerator.backward(model(part)["loss"])
        optimizer.step()
        hold(f"in {epoch}", job)
    schedule.step()
    if job.rank == 1 and epoch == 2:
        accelerator.set_trigger()
    if accelerator.check_trigger():
        break
tell("ends", job.rank, epoch + 1, schedule.scheduler.last_epoch)
save_counts(model, job.rank)
"""

TRAINER = """
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from springtide.integrations.transformers import Trainer


class Watch(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        hold(f"in {trainer._batches.epoch}", trainer.job)

    def on_epoch_end(self, args, state, control, model, **_):
        model.epoch, model.rank = round(state.epoch) - 1, trainer.job.rank

    def on_evaluate(self, args, state, control, metrics, **_):
        tell("validations", trainer.job.rank, round(state.epoch) - 1, metrics["eval_loss"], metrics["eval_trained"])


args = TrainingArguments(
    str(folder / "out"),
    num_train_epochs=10,
    per_device_train_batch_size=batch_size // 2,
    learning_rate=1.0,
    optim="sgd",
    lr_scheduler_type="constant",
    max_grad_norm=0.0,
    eval_strategy="epoch",
    save_strategy="epoch",
    metric_for_best_model="eval_loss",
    greater_is_better=False,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
data = [{"ids": row, "labels": torch.tensor(0.0)} for row in ids]
every = [{"ids": row, "labels": torch.tensor(0.0)} for row in torch.arange(50).reshape(-1, 1)]
model.parts = 1 if sync == "bsp" else 2  # of a worker's batch; the Trainer takes their mean
trainer = Trainer(
    model, args, train_dataset=data, eval_dataset=every, callbacks=[Watch(), EarlyStoppingCallback(1)],
    prepare={"sync": sync}, compute_metrics=lambda part: {"trained": part.predictions.sum()},
)
trainer.train()
tell("ends", trainer.job.rank, round(trainer.state.epoch), trainer.state.best_model_checkpoint)
save_counts(trainer.model, trainer.job.rank)
"""


def run(folder, script, sync, module):
    """Run the script with faults. Return how often each id occurs in the data of an epoch, as the table counts it."""
    ids = counting.draw(np.random.default_rng(5), SAMPLES)
    (folder / "train.py").write_text(HEAD + script)
    np.save(folder / "ids.npy", ids)
    with framework_jobs.warm_starts(module) as warm:
        framework_jobs.run_with_faults(folder, [BATCH, sync], sync, warm)
    expected = np.bincount(ids[:, 0] % 50, minlength=50) * (0.5 if sync == "bsp" else 1.0)  # a group takes the mean
    for rank in range(2):
        counts = np.load(folder / f"counts-{rank}.npz")
        assert (counts["small"][:, 0] == EPOCHS * expected).all()
        assert (counts["steps"] == EPOCHS * SAMPLES / BATCH).all()
    return expected


@pytest.mark.timeout(600)
@pytest.mark.extra("accelerate")
@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_loop_of_accelerate_counts_each_sample_once_and_stops_together(tmp_path, sync):
    run(tmp_path, ACCELERATE, sync, "accelerate")
    assert sorted(framework_jobs.lines(tmp_path, "ends")) == [[0, EPOCHS, EPOCHS], [1, EPOCHS, EPOCHS]]


@pytest.mark.timeout(600)
@pytest.mark.extra("transformers")
@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_trainer_counts_each_sample_once_and_stops_as_rank_0_decides(tmp_path, sync):
    expected = run(tmp_path, TRAINER, sync, "transformers.trainer")
    ends = sorted(framework_jobs.lines(tmp_path, "ends"))
    assert [told[:2] for told in ends] == [[0, EPOCHS], [1, EPOCHS]]
    for _, epoch, loss, trained in framework_jobs.lines(tmp_path, "validations"):
        assert loss == abs(epoch - 1), "every worker decides with the mean of all parts"
        assert trained == (epoch + 1) * expected.sum(), "all parts are evaluated once, after all updates"
    from safetensors.torch import load_file

    best = load_file(f"{ends[0][2]}/model.safetensors")
    assert (best["small.weight"][:, 0].numpy() == 2 * expected).all(), "the best checkpoint is what was evaluated"
