"""xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems (Lian et al., 2018).

In: `ClickBatch`. Out: click logits [B]. A compressed interaction network crosses whole embedding vectors up to a
bounded order. An MLP (implicit crosses) and a linear part run beside it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp


class CompressedInteractions(nn.Module):
    """Compressed interaction network: each map of layer k is a learned mix of products of input fields and maps of
    layer k - 1.
    """

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        before = [fields, *maps[:-1]]
        self.mixes = nn.ModuleList(nn.Linear(fields * last, here) for last, here in zip(before, maps, strict=True))

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [B, fields, dim] to [B, sum of maps]: each map is summed over its dim."""
        last, pooled = vectors, []
        for mix in self.mixes:
            products = torch.einsum("bfd,bhd->bdfh", vectors, last).flatten(2)
            last = torch.relu(mix(products)).transpose(1, 2)
            pooled.append(last.sum(dim=2))
        return torch.cat(pooled, dim=1)


class XDeepFM(nn.Module):
    """Linear part, compressed interaction network and MLP."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dense: int = 13,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        maps: Sequence[int] = (32, 32),
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        sizes.check(
            "XDeepFM", tables=tables, dense=dense, dim=dim, hidden=hidden, maps=maps, filled=["maps"], dropout=dropout
        )
        self.first_ids = FieldTables(tables, 1, sparse=sparse, open_ended=open_ended)
        self.first_dense = nn.Linear(dense, 1)
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.explicit = CompressedInteractions(len(tables), maps)
        self.explicit_out = nn.Linear(sum(maps), 1)
        self.deep = mlp(len(tables) * dim + dense, hidden, outputs=1, dropout=dropout)

    def forward(self, x: ClickBatch) -> Tensor:
        first = torch.cat(self.first_ids(x.sparse), dim=1).sum(dim=1) + self.first_dense(x.dense).squeeze(1)
        vectors = torch.stack(self.ids(x.sparse), dim=1)
        explicit = self.explicit_out(self.explicit(vectors)).squeeze(1)
        deep = self.deep(torch.cat([vectors.flatten(1), x.dense], dim=1)).squeeze(1)
        logit: Tensor = first + explicit + deep
        return logit
