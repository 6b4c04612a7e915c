"""DeepFM: A Factorization-Machine based Neural Network for CTR Prediction (Guo et al., 2017).

In: `ClickBatch`. Out: click logits [B]. The same embeddings feed a factorization machine and an MLP. The factorization
machine sums all pairwise dot products through the square-of-sum identity. First-order weights are added.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp


class DeepFM(nn.Module):
    """First-order weights, factorization machine and MLP over shared embeddings."""

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
        sizes.check("DeepFM", tables=tables, dense=dense, dim=dim, hidden=hidden, dropout=dropout)
        self.first_ids = FieldTables(tables, 1, sparse=sparse, open_ended=open_ended)
        self.first_dense = nn.Linear(dense, 1)
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.deep = mlp(len(tables) * dim + dense, hidden, outputs=1, dropout=dropout)

    def forward(self, x: ClickBatch) -> Tensor:
        first = torch.cat(self.first_ids(x.sparse), dim=1).sum(dim=1) + self.first_dense(x.dense).squeeze(1)
        vectors = torch.stack(self.ids(x.sparse), dim=1)
        deep = self.deep(torch.cat([vectors.flatten(1), x.dense], dim=1)).squeeze(1)
        logit: Tensor = first + pairwise_dots(vectors) + deep
        return logit


def pairwise_dots(vectors: Tensor) -> Tensor:
    """Return the sum of the dot products of all pairs of fields: [B, fields, dim] to [B]."""
    square_of_sum = vectors.sum(dim=1).square()
    sum_of_squares = vectors.square().sum(dim=1)
    return 0.5 * (square_of_sum - sum_of_squares).sum(dim=1)
