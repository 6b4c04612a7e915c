"""A split forward() returns the user's output class, or says plainly why it is not split."""

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.unit.worker import hashed
from tests.unit.worker.split.test_controller import Training, same


@dataclasses.dataclass
class Summed:
    """A dataclass that sets more than its fields."""

    logits: torch.Tensor
    ids: torch.Tensor

    def __post_init__(self):
        self.total = self.logits.sum()


class Scores:
    """A class of the user's own."""

    def __init__(self, logits, ids):
        self.logits, self.ids, self.total = logits, [ids], logits.sum()


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """A dataclass and dict in one, like those of transformers."""

    logits: torch.Tensor
    ids: torch.Tensor

    def __post_init__(self):
        super().__init__()
        for field in dataclasses.fields(self):
            super().__setitem__(field.name, getattr(self, field.name))

    @property
    def total(self):
        return self["logits"].sum()


class Drawn(torch.distributions.Normal):
    """A distribution."""

    def __init__(self, logits, ids):
        super().__init__(logits, torch.ones(()))

    logits = property(lambda self: self.loc)
    total = property(lambda self: self.log_prob(torch.zeros(())).sum())


class Returning(hashed.Hashed):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, raw, dense):
        ids = hashed.hashed(raw, self.salt)
        return self.kind(self.top(torch.cat([self.bag(ids), dense], dim=1)).squeeze(1), ids)


def train(monkeypatch, model, *, fed):
    """Losses, the final model and the last output."""
    training = Training(monkeypatch, fed, model=model)
    losses, given = [], None
    for raw, dense, y in training.batches:
        training.optimizer.zero_grad()
        given = training.model(raw, dense)
        loss = functional.mse_loss(given.logits, y) + 0.01 * given.total
        loss.backward()
        training.optimizer.step()
        losses.append(loss.item())
    return (losses, training.model.state_dict()), given, training


@pytest.mark.parametrize("kind", [Summed, Scores, ModelOutput, Drawn])
def test_split_forward_returns_the_same_output_class(monkeypatch, kind):
    torch.manual_seed(0)
    plain, wanted, _ = train(monkeypatch, Returning(kind), fed=lambda number: False)
    torch.manual_seed(0)
    split, given, training = train(monkeypatch, Returning(kind), fed=lambda number: number % 4 > 0)
    assert same(split, plain)
    assert training.made.moved, training.made.why
    assert training.splitting._forward.split_calls > 15 and training.splitting._forward.whole_calls == 0
    assert type(given) is kind and vars(given).keys() == vars(wanted).keys()
    assert torch.equal(given.total, wanted.total)
    if kind is Scores:
        assert torch.equal(given.ids[0], wanted.ids[0])


class Numpy(hashed.Hashed):
    def forward(self, raw, dense):
        ids = torch.from_numpy(np.minimum(raw.numpy() % hashed.ROWS, 7))
        return self.top(torch.cat([self.bag(ids), dense], dim=1)).squeeze(1)


class InPython(hashed.Hashed):
    def forward(self, raw, dense):
        ids = torch.tensor([[one % hashed.ROWS for one in row] for row in raw.tolist()])
        return self.top(torch.cat([self.bag(ids), dense], dim=1)).squeeze(1)


INTERNALS = (
    "dynamic_shapes",
    "torch._",
    "Unsupported",
    "GuardOn",
    "FakeTensor",
    "fx",
    "L[",
    "dynamo",
    "0x",
    "Expected",
)


@pytest.mark.parametrize(("model", "line"), [(Numpy, "np.minimum"), (InPython, "")])
def test_reason_for_not_splitting_is_plain_text_with_the_users_line(monkeypatch, model, line):
    training = Training(monkeypatch, lambda number: True, model=model())
    training.run()
    assert not training.made.moved
    assert line in training.made.why and (not line or "test_split_outputs.py:" in training.made.why), training.made.why
    assert not [word for word in INTERNALS if word in training.made.why], training.made.why


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        return {"word": "tide" * (index % 3 + 1), "y": float(index % 2)}


class OfWords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 1)

    def forward(self, words):
        return self.table(torch.tensor([len(word) for word in words])).squeeze(1)


def test_model_without_tensor_inputs_gets_advice(monkeypatch):
    training = Training(monkeypatch, lambda number: True, model=OfWords(), dataset=Words())
    for batch in training.batches:
        training.optimizer.zero_grad()
        functional.mse_loss(training.model(batch["word"]), batch["y"].float()).backward()
        training.optimizer.step()
    assert not training.made.moved and "@springtide.stateless" in training.made.why, training.made.why
    assert not [word for word in INTERNALS if word in training.made.why], training.made.why
