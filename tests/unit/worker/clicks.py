"""A small model and data set for the tests of a training loop, and the plain PyTorch loop it is compared with."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

ROWS, FIELDS, DIM = 50, 3, 4


class Clicks(nn.Module):
    """Two bags and an embedding under an MLP."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse) for _ in range(FIELDS - 1)])
        self.rows = nn.Embedding(ROWS, DIM, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = [bag(ids[:, i : i + 1]) for i, bag in enumerate(self.bags)]
        logits: torch.Tensor = self.mlp(torch.cat([*found, self.rows(ids[:, -1])], dim=1))
        return logits.squeeze(1)

    def table_weights(self) -> list[nn.Parameter]:
        return [*(bag.weight for bag in self.bags), self.rows.weight]

    def dense_weights(self) -> list[nn.Parameter]:
        return list(self.mlp.parameters())


def make(seed: int = 0, *, samples: int = 200, sparse: bool = False) -> tuple[Clicks, TensorDataset]:
    torch.manual_seed(seed)
    model = Clicks(sparse=sparse)
    ids = torch.randint(0, ROWS, (samples, FIELDS))
    return model, TensorDataset(ids, (torch.rand(samples) < 0.4).float())


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(model(x), y)


def plain(dataset: TensorDataset, batch_size: int):
    x, y = dataset.tensors
    return list(zip(x.split(batch_size), y.split(batch_size), strict=True))


def train(model, optimizers, batches, after=lambda: None):
    """A loop as users write it; returns the losses."""
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    losses = []
    for x, y in batches:
        for one in optimizers:
            one.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        after()
        for one in optimizers:
            one.step()
        losses.append(loss.item())
    return losses
