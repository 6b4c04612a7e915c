"""Neural Collaborative Filtering (He et al., 2017): NeuMF, with GMF and an MLP side by side.

In: `PairBatch`. Out: logits [B] that the user takes the item. Each half has its own embeddings.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo import sizes
from springtide.zoo.batches import PairBatch
from springtide.zoo.models.fields import lookup_table
from springtide.zoo.models.mlp import mlp


class NCF(nn.Module):
    """Product of embeddings (GMF) and an MLP over other embeddings, joined by one linear layer. `tables` = users,
    items.
    """

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32, 16),
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check("NCF", tables=tables, dim=dim, hidden=hidden, filled=["hidden"], dropout=dropout)
        if len(tables) != 2:
            raise errors.BadInput(f"NCF takes two tables, users and items; got {len(tables)}")
        users, items = tables
        self.gmf_user = lookup_table(users, dim, sparse=sparse, open_ended=open_ended, init_std=0.1)
        self.gmf_item = lookup_table(items, dim, sparse=sparse, open_ended=open_ended, init_std=0.1)
        self.mlp_user = lookup_table(users, dim, sparse=sparse, open_ended=open_ended, init_std=0.1)
        self.mlp_item = lookup_table(items, dim, sparse=sparse, open_ended=open_ended, init_std=0.1)
        self.deep = mlp(2 * dim, hidden, dropout=dropout)
        self.join = nn.Linear(dim + hidden[-1], 1)

    def forward(self, x: PairBatch) -> Tensor:
        """Return logits that the user takes the item."""
        product = self.gmf_user(x.user) * self.gmf_item(x.item)
        deep = self.deep(torch.cat([self.mlp_user(x.user), self.mlp_item(x.item)], dim=1))
        logit: Tensor = self.join(torch.cat([product, deep], dim=1)).squeeze(1)
        return logit
