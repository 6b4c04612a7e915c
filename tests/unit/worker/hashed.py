"""A model that hashes and crosses its ids before it looks them up, and its data."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

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
