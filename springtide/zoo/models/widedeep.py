"""Wide & Deep Learning for Recommender Systems (Cheng et al., 2016).

In: `ClickBatch`. Out: click logits [B]. The wide half memorizes: it is linear, with a weight per id and per counter.
The deep half generalizes: it is an MLP over embeddings and counters. Their logits are summed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp


class WideDeep(nn.Module):
    """A linear model beside an MLP over embeddings."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dense: int = 13,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check("WideDeep", tables=tables, dense=dense, dim=dim, hidden=hidden, dropout=dropout)
        self.wide_ids = FieldTables(tables, 1, sparse=sparse, open_ended=open_ended)
        self.wide_dense = nn.Linear(dense, 1)
        self.deep_ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.deep = mlp(len(tables) * dim + dense, hidden, outputs=1, dropout=dropout)

    def forward(self, x: ClickBatch) -> Tensor:
        wide = torch.cat(self.wide_ids(x.sparse), dim=1).sum(dim=1)
        deep = self.deep(torch.cat([*self.deep_ids(x.sparse), x.dense], dim=1))
        logit: Tensor = wide + self.wide_dense(x.dense).squeeze(1) + deep.squeeze(1)
        return logit
