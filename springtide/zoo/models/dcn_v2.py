"""DCN V2: Improved Deep & Cross Network (Wang et al., 2021).

In: `ClickBatch`. Out: click logits [B]. Cross layers have a full matrix, or two thin matrices of a given `rank`. The
MLP follows them ("stacked", the default) or runs beside them ("parallel").
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo import sizes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp

STRUCTURES = ("stacked", "parallel")


class MatrixCross(nn.Module):
    """Cross layer: x0 * (W x + b) + x, with W = U V for a given rank."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.mix: nn.Module = (
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
        )

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        crossed: Tensor = first * self.mix(x) + x
        return crossed


class DCNv2(nn.Module):
    """Matrix cross layers and an MLP."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        dense: int = 13,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        crosses: int = 2,
        rank: int | None = 64,
        structure: str = "stacked",
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        if structure not in STRUCTURES:
            raise errors.UnknownName("structure of DCNv2", structure, STRUCTURES)
        optional = {} if rank is None else {"rank": rank}
        sizes.check(
            "DCNv2",
            tables=tables,
            dense=dense,
            dim=dim,
            hidden=hidden,
            crosses=crosses,
            filled=["hidden"],
            dropout=dropout,
            **optional,
        )
        width = len(tables) * dim + dense
        self.stacked = structure == "stacked"
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.crosses = nn.ModuleList(MatrixCross(width, rank) for _ in range(crosses))
        self.deep = mlp(width, hidden, dropout=dropout)
        self.join = nn.Linear(hidden[-1] if self.stacked else width + hidden[-1], 1)

    def forward(self, x: ClickBatch) -> Tensor:
        first = torch.cat([*self.ids(x.sparse), x.dense], dim=1)
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        last = self.deep(crossed) if self.stacked else torch.cat([crossed, self.deep(first)], dim=1)
        logit: Tensor = self.join(last).squeeze(1)
        return logit
