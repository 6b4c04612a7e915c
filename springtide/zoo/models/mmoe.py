"""Click and conversion ranker with Multi-gate Mixture-of-Experts (Ma et al., 2018).

In: `RankBatch`. Out: `Predictions`, the logits of a click and of a conversion after the click. 37 features in five
groups of embedding widths feed four experts of 64 units. One gate per task mixes the experts. Each task has a tower
512-256-256-64 and a last layer of 64, all with Swish. With two million ids per feature the model has a billion
parameters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from springtide import errors
from springtide.zoo import sizes
from springtide.zoo.batches import RankBatch
from springtide.zoo.models.fields import FieldTables
from springtide.zoo.models.mlp import mlp

GROUPS: tuple[tuple[int, int], ...] = ((64, 2), (8, 18), (64, 2), (8, 12), (8, 3))
"""Embedding width and number of features of each group: 37 features, 520 floats per sample."""

TASKS = ("ctr", "cvr")


class Predictions(NamedTuple):
    """Logits of the two tasks."""

    ctr: Tensor
    """Logits of a click, [B]."""
    cvr: Tensor
    """Logits of a conversion given the click, [B]."""


class MMoE(nn.Module):
    """Shared experts, with one gate and one tower per task."""

    def __init__(
        self,
        tables: Sequence[int],
        *,
        groups: Sequence[tuple[int, int]] = GROUPS,
        experts: int = 4,
        expert_units: int = 64,
        tower: Sequence[int] = (512, 256, 256, 64),
        last: int = 64,
        dropout: float = 0.0,
        sparse: bool = False,
        open_ended: bool = False,
    ) -> None:
        super().__init__()
        if any(not isinstance(group, Sequence) or len(group) != 2 for group in groups):
            raise errors.BadInput(f"MMoE: groups are {groups!r}; wanted (width, features) of each, as in [(64, 2)]")
        sizes.check(
            "MMoE",
            tables=tables,
            groups=[size for group in groups for size in group],
            experts=experts,
            expert_units=expert_units,
            tower=tower,
            last=last,
            filled=["groups"],
            dropout=dropout,
        )
        dims = [dim for dim, count in groups for _ in range(count)]
        if len(tables) != len(dims):
            raise errors.BadInput(f"the embedding groups have {len(dims)} features but there are {len(tables)} tables")
        width = sum(dims)
        self.ids = FieldTables(tables, dims, sparse=sparse, open_ended=open_ended, init_std=0.05)
        self.experts = nn.ModuleList(mlp(width, [expert_units], activation=nn.SiLU) for _ in range(experts))
        self.gates = nn.ModuleDict({task: nn.Linear(width, experts) for task in TASKS})
        self.towers = nn.ModuleDict(
            {task: mlp(expert_units, [*tower, last], outputs=1, activation=nn.SiLU, dropout=dropout) for task in TASKS}
        )

    def forward(self, x: RankBatch) -> Predictions:
        seen = torch.cat(self.ids(x.sparse), dim=1)
        opinions = torch.stack([expert(seen) for expert in self.experts], dim=1)
        return Predictions(*(self._task(task, seen, opinions) for task in TASKS))

    def _task(self, task: str, seen: Tensor, opinions: Tensor) -> Tensor:
        shares = torch.softmax(self.gates[task](seen), dim=1)
        mixed = torch.bmm(shares.unsqueeze(1), opinions).squeeze(1)
        logit: Tensor = self.towers[task](mixed).squeeze(1)
        return logit
