"""A model that hashes and crosses its ids before it looks them up, its data, and a split of it made by hand."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from springtide.prep.stage import Stage

ROWS, DIM = 40, 4


class Hashed(nn.Module):
    """Raw ids become rows by arithmetic that needs no parameters; dense values go in as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.salt = 7
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.top = nn.Linear(DIM + 2, 1)

    def forward(self, raw: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        ids = hashed(raw, self.salt)
        return self.top(torch.cat([self.bag(ids), dense], dim=1)).squeeze(1)


def hashed(raw: torch.Tensor, salt: int) -> torch.Tensor:
    crossed = torch.cat([raw, raw[:, :1] * 31 + raw[:, 1:]], dim=1)
    return (crossed * 2654435761 + salt) % ROWS


@dataclass(frozen=True)
class Hashing:
    """The part that moves."""

    salt: int
    most: int = 10**9

    def __call__(self, leaves):
        return [hashed(leaves[0], self.salt)] if len(leaves[0]) <= self.most else None


@dataclass
class HandMade:
    """What prep.split.split would find for a Hashed model called as model(raw, dense)."""

    model: Hashed
    needs: frozenset[int] = frozenset({1})
    explanation: None = None
    digest: str = "made by hand"
    reason: str = ""

    def __post_init__(self) -> None:
        self.stages = (Stage("hash", Hashing(self.model.salt)),)

    def rest(self, crossing, leaves):
        (ids,) = crossing
        return self.model.top(torch.cat([self.model.bag(ids), leaves[1]], dim=1)).squeeze(1)

    def stale(self):
        return self.reason


def data(samples: int = 120) -> TensorDataset:
    chance = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 10_000, (samples, 3), generator=chance)
    return TensorDataset(raw, torch.rand(samples, 2, generator=chance), torch.rand(samples, generator=chance))


def make(seed: int = 0) -> Hashed:
    torch.manual_seed(seed)
    return Hashed()


def step(model, optimizer, raw, dense, y) -> float:
    """One step of a loop as users write it."""
    optimizer.zero_grad()
    loss = functional.mse_loss(model(raw, dense), y)
    loss.backward()
    optimizer.step()
    return loss.item()
