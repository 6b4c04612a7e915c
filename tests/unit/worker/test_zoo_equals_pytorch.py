"""bsp with one worker and servers: the losses of plain PyTorch to 1e-5 for the whole zoo.

CI runs every model once and every optimizer once, 20 steps each. The grid of both, 60 steps each, is a soak test.
"""

import pytest
import torch
from torch import nn

from springtide import zoo

STEPS, MOST_STEPS, BATCH = 20, 60, 16
OPTIMIZERS = ("SGD", "Adagrad", "SparseAdam")
# At 0.02 Adagrad makes a step of +-0.02 of a rounding error: there plain PyTorch with dense gradients, with sparse ones
# and in float64 part from each other by 5e-4 after 200 steps of the MMoE ranker.
RATES = {"SGD": 0.02, "Adagrad": 0.005, "SparseAdam": 0.002}


class Examples(torch.utils.data.Dataset):
    """Seeded batches of a model, as a data set."""

    def __init__(self, name, steps):
        self.x, self.y = zoo.example_batch(name, batch=steps * BATCH, seed=3)

    def __len__(self):
        return len(self.y)

    def batch(self, indices):
        indices = torch.from_numpy(indices)
        return type(self.x)(*(leaf[indices] for leaf in self.x)), self.y[indices]


def optimizers(kind, model):
    tables = [one.weight for one in model.modules() if isinstance(one, (nn.Embedding, nn.EmbeddingBag))]
    if kind != "SparseAdam":
        return [getattr(torch.optim, kind)(model.parameters(), lr=RATES[kind])]
    known = {id(weight) for weight in tables}
    dense = [param for param in model.parameters() if id(param) not in known]
    return [torch.optim.SparseAdam(tables, lr=RATES[kind]), torch.optim.SGD(dense, lr=RATES["SGD"])]


def losses(name, kind, steps, job=None):
    torch.manual_seed(1)
    model = zoo.model(name, sparse=kind == "SparseAdam")
    made, data = optimizers(kind, model), Examples(name, steps)
    if job is None:
        batches = [data.batch(torch.arange(i, i + BATCH).numpy()) for i in range(0, steps * BATCH, BATCH)]
    else:
        model, made, batches = job.prepare(model, made, data, batch_size=BATCH, shuffle=False)
    found = []
    for x, y in batches:
        for one in made:
            one.zero_grad()
        loss = zoo.loss(model(x), y)
        loss.backward()
        for one in made:
            one.step()
        found.append(loss.item())
    return found


def check(name, kind, served_job, steps=STEPS):
    served = losses(name, kind, steps, served_job(servers=2, sync="bsp"))
    assert len(served) == steps
    assert served == pytest.approx(losses(name, kind, steps), abs=1e-5)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_zoo_model_equals_plain_pytorch(served_job, name):
    check(name, "SGD", served_job)


@pytest.mark.parametrize("kind", OPTIMIZERS[1:])
def test_every_optimizer_equals_plain_pytorch(served_job, kind):
    check("widedeep", kind, served_job)


@pytest.mark.soak
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_zoo_model_with_every_optimizer_equals_plain_pytorch(served_job, name, kind):
    check(name, kind, served_job, MOST_STEPS)
