"""A model with bags of all kinds, for tests of lookups."""

import torch
from torch import nn


class OddBags(nn.Module):
    """Bags of all kinds over one table shape, with padding, offsets and weights."""

    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(50, 5, mode="mean", padding_idx=3, dtype=dtype)
        self.jagged = nn.EmbeddingBag(50, 5, mode="sum", dtype=dtype)
        self.last = nn.EmbeddingBag(50, 5, mode="mean", include_last_offset=True, dtype=dtype)
        self.rows = nn.Embedding(50, 5, padding_idx=7, dtype=dtype)
        self.frozen = nn.Embedding(50, 5, dtype=dtype).requires_grad_(False)
        self.most = nn.EmbeddingBag(50, 5, mode="max", dtype=dtype)
        self.scale = nn.Parameter(torch.ones(50))
        self.top = nn.Linear(5, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        flat, starts = ids.reshape(-1), torch.arange(0, ids.numel(), ids.shape[1])
        uneven = torch.where(starts > 0, starts - 1, 0)
        ends = torch.cat([starts, torch.tensor([ids.numel() - 2])])
        parts = [
            self.mean(ids),
            self.jagged(flat, uneven, per_sample_weights=self.scale[flat]),
            self.last(flat, ends),
            self.rows(ids).sum(1),
            self.frozen(ids[:, 0]),
            self.most(ids),
        ]
        return self.top(sum(part.float() for part in parts)).squeeze(1)
