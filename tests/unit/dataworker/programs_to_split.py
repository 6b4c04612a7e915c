"""Models as users write them, with features made in the middle of forward(). What they share: ids, dense, labels."""

import numpy as np
import torch
from torch import nn

import springtide as st


class Base(nn.Module):
    """A table, an odd normalization and a linear layer."""

    def __init__(self, width: int = 8 + 3) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 8, mode="sum")
        self.norm = nn.BatchNorm1d(3, affine=False)
        self.drop = nn.Dropout(0.3)
        self.top = nn.Linear(width, 1)
        self.register_buffer("edges", torch.linspace(-1, 1, 9))
        self.salt = 17

    def score(self, rows, dense, label):
        x = self.drop(torch.cat([rows, self.norm(dense)], 1))
        out = self.top(x).squeeze(1)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(out, label), "score": out}


class Crosses(Base):
    """Hashes, crosses, buckets and unique, between the parts that have parameters."""

    def __init__(self) -> None:
        super().__init__(8 + 3 + 8)
        self.words = nn.Embedding(500, 8)

    def forward(self, ids, dense, *, label):
        hashed = ((ids * 2654435761 + self.salt) % 1000).clone()
        hashed[hashed < 5] = 0
        cross = (hashed[:, 0] * 31 + hashed[:, 1]) % 1000
        unique, inverse = torch.unique(hashed, return_inverse=True)
        bucket = torch.bucketize(dense, self.edges)
        with torch.no_grad():
            scaled = torch.log1p(dense.abs())
        rows = self.table((torch.cat([hashed, cross[:, None]], 1) + bucket[:, :1]) % 1000)
        seen = self.words(unique % 500)[inverse].sum(1)
        return self.score(torch.cat([rows, seen], 1), scaled, label)


class Branches(Base):
    """Reads a value in Python in the middle, and branches on it."""

    def forward(self, ids, dense, *, label):
        hashed = (ids * 2654435761 + self.salt) % 997
        if hashed.max().item() > 990:
            hashed = hashed % 800
        return self.score(self.table(hashed), dense, label)


class Counting(Base):
    """Counts samples in a buffer, by a length."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, ids, dense, *, label):
        self.seen += len(ids)
        return self.score(self.table((ids * 2654435761 + self.salt) % 997), dense, label)


class Arrays(Base):
    """NumPy in the middle of forward()."""

    def forward(self, ids, dense, *, label):
        hashed = (ids * 2654435761 + self.salt) % 997
        counted = np.minimum(hashed.numpy(), np.int64(900))
        return self.score(self.table(torch.from_numpy(counted)), dense, label)


class Words(Base):
    """Strings: only the user's word that a function is stateless helps."""

    @st.stateless
    def hashed(self, words):
        return torch.tensor([[len(word) * self.salt % 1000, ord(word[0])] for word in words])

    def forward(self, words, dense, *, label):
        return self.score(self.table(self.hashed(words)), dense, label)


class OneHot(Base):
    """A result far larger than its input."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(1000, 8)

    def forward(self, ids, dense, *, label):
        hashed = (ids[:, 0] * 2654435761 + self.salt) % 1000
        return self.score(self.wide(nn.functional.one_hot(hashed, 1000).float()), dense, label)


def batch(size: int, seed: int = 0):
    """A call: (args, kwargs)."""
    draw = torch.Generator().manual_seed(seed * 1009 + size)
    ids = torch.randint(0, 1 << 40, (size, 4), generator=draw)
    dense = torch.randn(size, 3, generator=draw)
    return (ids, dense), {"label": torch.rand(size, generator=draw).round()}


def words(size: int, seed: int = 0):
    """A call whose first argument is strings."""
    (ids, dense), kwargs = batch(size, seed)
    return (["w" * int(1 + one % 7) for one in ids[:, 0]], dense), kwargs
