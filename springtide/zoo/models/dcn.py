"""Deep & Cross Network for Ad Click Predictions (Wang et al., 2017): DCN, version 1.

In: `ClickBatch`. Out: click logits [B]. Each cross layer multiplies the input vector by a learned *scalar* of the
previous layer, and adds the product to that layer. Each layer raises the order of the crosses by one, for one vector of
weights. Version 2 is `dcn_v2`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp


class VectorCross(nn.Module):
    """Cross layer: x0 * (w . x) + b + x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Linear(width, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        crossed: Tensor = first * self.weight(x) + self.bias + x
        return crossed


class DCN(nn.Module):
    """Cross layers beside an MLP, joined by one linear layer."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dense: int = 13,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        crosses: int = 3,
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check(
            "DCN",
            tables=tables,
            dense=dense,
            dim=dim,
            hidden=hidden,
            crosses=crosses,
            filled=["hidden"],
            dropout=dropout,
        )
        width = len(tables) * dim + dense
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.crosses = nn.ModuleList(VectorCross(width) for _ in range(crosses))
        self.deep = mlp(width, hidden, dropout=dropout)
        self.join = nn.Linear(width + hidden[-1], 1)

    def forward(self, x: ClickBatch) -> Tensor:
        first = torch.cat([*self.ids(x.sparse), x.dense], dim=1)
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        logit: Tensor = self.join(torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
        return logit
