"""RecBole's Trainer in real jobs: every interaction counts once an epoch when workers and servers are killed, and all
workers stop together and get the metrics of all users.

A table counts the users of the interactions as in counting.py. The metric is worse after epoch 0, so early stopping
ends the training after epoch 2, and the best checkpoint is that of epoch 0.
"""

import numpy as np
import pytest

from tests.process import framework_jobs

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.extra("recbole")]

USERS, EACH, BATCH, EPOCHS = 12, 10, 6, 3

SCRIPT = """
import json
import os
import pathlib
import sys
import time
import warnings

warnings.simplefilter("ignore")  # what RecBole warns about is its own
import numpy as np
import torch

np.float_, np.complex_, np.unicode_ = np.float64, np.complex128, np.str_  # NumPy 2 removed what RecBole reads
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.abstract_recommender import GeneralRecommender
from recbole.utils import InputType, init_seed

from springtide.integrations.recbole import Trainer

folder, batch_size, sync = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv = sys.argv[:1]  # RecBole reads options there
os.chdir(folder)  # and writes logs into the current folder


def hold(what, job):
    while (folder / f"hold {what}").exists() and not job.leaving:
        (folder / f"{what}, rank {job.rank}").touch()
        time.sleep(0.01)


class Counter(GeneralRecommender):
    input_type = InputType.PAIRWISE

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.users = torch.nn.Embedding(self.n_users, 1)
        torch.nn.init.zeros_(self.users.weight)
        self.steps = torch.nn.Parameter(torch.zeros(3))

    def calculate_loss(self, interaction):
        hold(f"in {trainer._loader._batches.epoch}", trainer.job)
        return -(self.users(interaction["user_id"]).sum() + self.steps.sum())

    def full_sort_predict(self, interaction):
        scores = torch.arange(self.n_items).repeat(len(interaction), 1) * (interaction["user_id"] % 3 - 1)[:, None]
        return (-scores if self.steps[0] < 30 else scores).float().view(-1)  # worse after the first epoch


config = Config(
    model=Counter,
    dataset="clicks",
    config_dict={
        "data_path": str(folder), "epochs": 10, "train_batch_size": batch_size, "learner": "sgd", "learning_rate": 1.0,
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]}, "stopping_step": 1,
        "checkpoint_dir": str(folder / "best"), "use_gpu": False, "show_progress": False,
        "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "full"},
    },
)
init_seed(1, True)
train, valid, test = data_preparation(config, create_dataset(config))
assert len(train.dataset) == 120
model = Counter(config, train.dataset)
trainer = Trainer(config, model, prepare={"sync": sync})
_, best = trainer.fit(train, valid)
state = {name: value.clone() for name, value in model.state_dict().items()}
np.savez(folder / f"counts-{trainer.job.rank}.npz", users=state["users.weight"], steps=state["steps"])
whole = trainer.evaluate(valid)
with open(folder / "ends", "a") as file:
    values = [{name: float(value) for name, value in result.items()} for result in (best, whole)]
    print(json.dumps([trainer.job.rank, *values, model.users.weight[:, 0].tolist()]), file=file)
"""


@pytest.fixture
def warm():
    with framework_jobs.warm_starts("recbole.trainer") as client:
        yield client


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_recbole_counts_each_interaction_once_and_stops_together(tmp_path, warm, sync):
    lines = [f"{user}\t{(3 * user + time) % 20}\t{time}" for user in range(USERS) for time in range(EACH + 2)]
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "clicks.inter").write_text(
        "\n".join(["user_id:token\titem_id:token\ttimestamp:float", *lines]) + "\n"
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    framework_jobs.run_with_faults(tmp_path, [BATCH, sync], sync, warm)
    expected = np.array([0] + [EACH] * USERS) * (0.5 if sync == "bsp" else 1.0)  # a group takes the mean
    for rank in range(2):
        counts = np.load(tmp_path / f"counts-{rank}.npz")
        assert (counts["users"][:, 0] == EPOCHS * expected).all()
        assert (counts["steps"] == EPOCHS * USERS * EACH / BATCH).all()
    ends = sorted(framework_jobs.lines(tmp_path, "ends"), key=lambda told: told[0])
    assert [told[0] for told in ends] == [0, 1]
    for _, joint, whole, best in ends:
        assert joint == whole and len(set(joint.values())) > 1, "a divided validation gives the metrics of all users"
        assert best == expected.tolist(), "the best checkpoint is that of epoch 0"
