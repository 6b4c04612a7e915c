"""Programs with state that no tracer sees: read or changed in forward(), by the loop, or by the data set.

Each trains the same model whoever makes its batches, or data workers must not be used for it. `PROGRAMS` has them all:
those of hostile_forwards.py, hostile_loops.py and hostile_data.py.
"""

import os
import random
import sys
import types

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

ROWS, DIM, SAMPLES = 40, 4, 96
SETTINGS = {"shift": 5, "list": [1, 2, 3]}
CALLS = types.SimpleNamespace(count=0)
TEACHER = []
PROGRAMS = {}


class Net(nn.Module):
    """Raw ids become rows by arithmetic; subclasses add their own hidden state."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.top = nn.Linear(DIM + 2, 1)
        self.register_buffer("edges", torch.linspace(0, 1, 5))
        self.salt = 7

    def ids(self, raw):
        return (raw * 2654435761 + self.salt) % ROWS

    def features(self, dense):
        return torch.log1p(dense * 3) + torch.bucketize(dense, self.edges)

    def forward(self, raw, dense):
        return self.top(torch.cat([self.bag(self.ids(raw)), self.features(dense)], 1)).squeeze(1)


class Program:
    """A loop as users write it; `before` changes hidden state at every step."""

    net = Net
    epochs = 3
    batch_size = 8

    def __init__(self):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        vars(sys.modules[type(self).__module__])["SCALE"] = 3  # of the file that it is in
        SETTINGS.update(shift=5, list=[1, 2, 3])
        CALLS.count = 0
        TEACHER.clear()
        os.environ.pop("HOSTILE", None)
        self.model = self.net()
        self.data = self.dataset()

    def dataset(self):
        drawn = torch.Generator().manual_seed(3)
        raw = torch.randint(0, 10_000, (SAMPLES, 3), generator=drawn)
        return TensorDataset(raw, torch.rand(SAMPLES, 2, generator=drawn), torch.rand(SAMPLES, generator=drawn))

    def optimizer(self):
        return torch.optim.Adagrad(self.model.parameters(), lr=0.1)

    def before(self, number):
        pass

    def loss(self, model, batch):
        raw, dense, y = batch
        return functional.mse_loss(model(raw, dense), y)

    def after(self, number):
        pass

    def outside(self):
        """Tensors that it keeps outside its model."""
        return [one.clone() for one in TEACHER]


def program(cls):
    PROGRAMS[cls.__name__] = cls
    return cls


def net(**members):
    """A model with some methods of its own."""
    return type("Own", (Net,), members)


def at(number, change):
    """A loop that changes something once, at a step after the split has arrived."""

    def before(self, now):
        if now == number:
            change(self)

    return before
