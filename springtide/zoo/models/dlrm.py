"""Deep Learning Recommendation Model for Personalization and Recommendation Systems (Naumov et al., 2019): DLRM.

In: `ClickBatch`. Out: click logits [B]. A bottom MLP maps the counters to the width of an embedding. The dot products
of all pairs of these vectors and the bottom's output feed the top MLP.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models import dots
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp


class DLRM(nn.Module):
    """Bottom MLP, dot interaction, top MLP."""

    above_diagonal: Tensor

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dense: int = 13,
        dim: int = 16,
        bottom: Sequence[int] = (128, 64),
        top: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check("DLRM", tables=tables, dense=dense, dim=dim, bottom=bottom, top=top, dropout=dropout)
        vectors = len(tables) + 1
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended, init_std=dim**-0.5 / 2)
        self.bottom = mlp(dense, [*bottom, dim])
        self.top = mlp(dim + vectors * (vectors - 1) // 2, top, outputs=1, dropout=dropout)
        row, column = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("above_diagonal", row * vectors + column, persistent=False)

    def forward(self, x: ClickBatch) -> Tensor:
        bottom = self.bottom(x.dense)
        vectors = torch.stack([bottom, *self.ids(x.sparse)], dim=1)
        between = dots.of_all_pairs(vectors).flatten(1)
        pairs = between.index_select(1, self.above_diagonal)
        logit: Tensor = self.top(torch.cat([bottom, pairs], dim=1)).squeeze(1)
        return logit
