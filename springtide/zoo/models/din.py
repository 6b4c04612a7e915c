"""Deep Interest Network for Click-Through Rate Prediction (Zhou et al., 2018): DIN.

In: `HistoryBatch`. Out: click logits [B]. An MLP weighs each past item against the candidate. The weighted sum is the
user's interest in this candidate. Candidate and history are in one tensor, so they share a table and a lookup. Id 0 is
padding and has no effect.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo import sizes
from springtide.zoo.batches import HistoryBatch
from springtide.zoo.models.fields import lookup_table
from springtide.zoo.models.mlp import mlp

PADDING = 0


class InterestAttention(nn.Module):
    """Attention weight of each past item given the candidate; not normalized, as in the paper."""

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.score = mlp(4 * width, hidden, outputs=1, activation=nn.PReLU)

    def forward(self, candidate: Tensor, history: Tensor, present: Tensor) -> Tensor:
        """Map [B, width], [B, history, width] and [B, history] bool to [B, width]."""
        beside = candidate.unsqueeze(1).expand_as(history)
        seen = torch.cat([beside, history, beside - history, beside * history], dim=2)
        weights = self.score(seen).squeeze(2) * present.to(history.dtype)
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)


class DIN(nn.Module):
    """Attention over the user's history. `tables` = users, items, categories; items and categories include id 0."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dim: int = 16,
        attention: Sequence[int] = (64, 16),
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check("DIN", tables=tables, dim=dim, attention=attention, hidden=hidden, dropout=dropout)
        if len(tables) != 3:
            raise errors.BadInput(f"DIN takes three tables, users, items and categories; got {len(tables)}")
        users, items, categories = tables
        self.user = lookup_table(users, dim, sparse=sparse, open_ended=open_ended, init_std=0.1)
        self.item = lookup_table(items, dim, sparse=sparse, open_ended=open_ended, init_std=0.1, padding_idx=PADDING)
        self.category = lookup_table(
            categories, dim, sparse=sparse, open_ended=open_ended, init_std=0.1, padding_idx=PADDING
        )
        self.attention = InterestAttention(2 * dim, attention)
        self.deep = mlp(7 * dim, hidden, outputs=1, activation=nn.PReLU, dropout=dropout)

    def forward(self, x: HistoryBatch) -> Tensor:
        """Return click logits of the candidate, column 0 of `items`."""
        vectors = torch.cat([self.item(x.items), self.category(x.categories)], dim=2)
        candidate, history = vectors[:, 0], vectors[:, 1:]
        interest = self.attention(candidate, history, x.items[:, 1:] != PADDING)
        seen = torch.cat([self.user(x.user), candidate, interest, candidate * interest], dim=1)
        logit: Tensor = self.deep(seen).squeeze(1)
        return logit
