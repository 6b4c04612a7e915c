"""The nine recommendation models, each after its paper, and their loss.

Click models take a `ClickBatch` and return click logits [B]. `catalog` builds a model by name.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from springtide import errors
from springtide.domain.core import validation
from springtide.zoo.layers import (
    ClickBatch,
    FieldTables,
    HistoryBatch,
    PairBatch,
    RankBatch,
    check_sizes,
    dots_of_all_pairs,
    lookup_table,
    mlp,
)


class WideDeep(nn.Module):
    """Wide & Deep Learning for Recommender Systems (Cheng et al., 2016).

    The wide half is linear and memorizes; the deep half is an MLP over embeddings and counters, and generalizes.
    """

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
        check_sizes(locals())
        self.wide_ids = FieldTables(tables, 1, sparse=sparse, open_ended=open_ended)
        self.wide_dense = nn.Linear(dense, 1)
        self.deep_ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.deep = mlp(len(tables) * dim + dense, hidden, outputs=1, dropout=dropout)

    def wide(self, x: ClickBatch) -> Tensor:
        logit: Tensor = torch.cat(self.wide_ids(x.sparse), dim=1).sum(dim=1) + self.wide_dense(x.dense).squeeze(1)
        return logit

    def forward(self, x: ClickBatch) -> Tensor:
        deep: Tensor = self.deep(torch.cat([*self.deep_ids(x.sparse), x.dense], dim=1))
        return self.wide(x) + deep.squeeze(1)


class DeepFM(WideDeep):
    """DeepFM: A Factorization-Machine based Neural Network for CTR Prediction (Guo et al., 2017).

    The embeddings of the deep half also feed a factorization machine.
    """

    def forward(self, x: ClickBatch) -> Tensor:
        vectors = torch.stack(self.deep_ids(x.sparse), dim=1)
        deep: Tensor = self.deep(torch.cat([vectors.flatten(1), x.dense], dim=1))
        return self.wide(x) + self.interactions(vectors) + deep.squeeze(1)

    def interactions(self, vectors: Tensor) -> Tensor:
        return pairwise_dots(vectors)


def pairwise_dots(vectors: Tensor) -> Tensor:
    """Return the sum of the dot products of all pairs of fields, from [B, fields, dim] to [B]."""
    square_of_sum = vectors.sum(dim=1).square()
    sum_of_squares = vectors.square().sum(dim=1)
    return 0.5 * (square_of_sum - sum_of_squares).sum(dim=1)


class CompressedInteractions(nn.Module):
    """Compressed interaction network. The maps of layer k are mixtures of products of input fields and maps of layer k
    - 1."""

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        super().__init__()
        before = [fields, *maps[:-1]]
        self.mixes = nn.ModuleList(nn.Linear(fields * last, here) for last, here in zip(before, maps, strict=True))

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [B, fields, dim] to [B, sum of maps]. Each feature map is summed over the embedding dimension."""
        last, pooled = vectors, []
        for mix in self.mixes:
            products = torch.einsum("bfd,bhd->bdfh", vectors, last).flatten(2)
            last = torch.relu(mix(products)).transpose(1, 2)
            pooled.append(last.sum(dim=2))
        return torch.cat(pooled, dim=1)


class XDeepFM(DeepFM):
    """xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems (Lian et al., 2018).

    A compressed interaction network (explicit crosses) replaces the factorization machine.
    """

    def __init__(self, tables: Sequence[int], *, maps: Sequence[int] = (32, 32), **settings: Any) -> None:
        super().__init__(tables, **settings)
        check_sizes({"self": self, "maps": maps, "dropout": 0.0}, filled=["maps"])
        self.explicit = CompressedInteractions(len(tables), maps)
        self.explicit_out = nn.Linear(sum(maps), 1)

    def interactions(self, vectors: Tensor) -> Tensor:
        logit: Tensor = self.explicit_out(self.explicit(vectors)).squeeze(1)
        return logit


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
    """Deep & Cross Network for Ad Click Predictions (Wang et al., 2017): cross layers beside an MLP.

    Each cross layer raises the order of the feature crosses by one, and costs one vector of weights.
    """

    stacked = False

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
        check_sizes(locals(), filled=["hidden"])
        width = len(tables) * dim + dense
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended)
        self.crosses = nn.ModuleList(self.cross(width) for _ in range(crosses))
        self.deep = mlp(width, hidden, dropout=dropout)
        self.join = nn.Linear(hidden[-1] if self.stacked else width + hidden[-1], 1)

    def cross(self, width: int) -> nn.Module:
        return VectorCross(width)

    def forward(self, x: ClickBatch) -> Tensor:
        first = torch.cat([*self.ids(x.sparse), x.dense], dim=1)
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        last = self.deep(crossed) if self.stacked else torch.cat([crossed, self.deep(first)], dim=1)
        logit: Tensor = self.join(last).squeeze(1)
        return logit


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


class DCNv2(DCN):
    """DCN V2: Improved Deep & Cross Network (Wang et al., 2021).

    Cross layers have a full matrix, or two thin matrices of a given `rank`. The MLP follows the cross layers
    ("stacked") or is beside them ("parallel").
    """

    def __init__(
        self,
        tables: Sequence[int],
        *,
        crosses: int = 2,
        rank: int | None = 64,
        structure: str = "stacked",
        **settings: Any,
    ) -> None:
        validation.choice(structure, "structure of DCNv2", STRUCTURES)
        check_sizes({"self": self, "rank": rank, "dropout": 0.0})
        self.rank, self.stacked = rank, structure == "stacked"
        super().__init__(tables, crosses=crosses, **settings)

    def cross(self, width: int) -> nn.Module:
        return MatrixCross(width, self.rank)


class DLRM(nn.Module):
    """Deep Learning Recommendation Model (Naumov et al., 2019): bottom MLP, dot interaction, top MLP."""

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
        check_sizes(locals())
        vectors = len(tables) + 1
        self.ids = FieldTables(tables, dim, sparse=sparse, open_ended=open_ended, init_std=dim**-0.5 / 2)
        self.bottom = mlp(dense, [*bottom, dim])
        self.top = mlp(dim + vectors * (vectors - 1) // 2, top, outputs=1, dropout=dropout)
        row, column = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("above_diagonal", row * vectors + column, persistent=False)

    def forward(self, x: ClickBatch) -> Tensor:
        bottom = self.bottom(x.dense)
        vectors = torch.stack([bottom, *self.ids(x.sparse)], dim=1)
        between = dots_of_all_pairs(vectors).flatten(1)
        pairs = between.index_select(1, self.above_diagonal)
        logit: Tensor = self.top(torch.cat([bottom, pairs], dim=1)).squeeze(1)
        return logit


class NCF(nn.Module):
    """Neural Collaborative Filtering (He et al., 2017): NeuMF. Takes a `PairBatch` and returns logits that the user
    takes the item.

    One linear layer combines GMF (a product of embeddings) and an MLP over separate embeddings. `tables` has the
    numbers of users and items.
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
        check_sizes(locals(), filled=["hidden"])
        if len(tables) != 2:
            raise errors.BadInput(f"NCF takes two tables, users and items; got {len(tables)}")
        users, items = tables
        table = functools.partial(lookup_table, dim=dim, sparse=sparse, open_ended=open_ended)
        self.gmf_user, self.gmf_item = table(users), table(items)
        self.mlp_user, self.mlp_item = table(users), table(items)
        self.deep = mlp(2 * dim, hidden, dropout=dropout)
        self.join = nn.Linear(dim + hidden[-1], 1)

    def forward(self, x: PairBatch) -> Tensor:
        product = self.gmf_user(x.user) * self.gmf_item(x.item)
        deep = self.deep(torch.cat([self.mlp_user(x.user), self.mlp_item(x.item)], dim=1))
        logit: Tensor = self.join(torch.cat([product, deep], dim=1)).squeeze(1)
        return logit


PADDING = 0


class InterestAttention(nn.Module):
    """Attention weight of each past item for the candidate item. The weights are not normalized, as in the paper."""

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
    """Deep Interest Network for Click-Through Rate Prediction (Zhou et al., 2018). Takes a `HistoryBatch` and
    returns click logits.

    `tables` has the numbers of users, items and categories, where the last two use id 0 for padding. The candidate
    (column 0) and the history are looked up together.
    """

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
        check_sizes(locals())
        if len(tables) != 3:
            raise errors.BadInput(f"DIN takes three tables, users, items and categories; got {len(tables)}")
        users, items, categories = tables
        table = functools.partial(lookup_table, dim=dim, sparse=sparse, open_ended=open_ended)
        self.user = table(users)
        self.item, self.category = table(items, padding_idx=PADDING), table(categories, padding_idx=PADDING)
        self.attention = InterestAttention(2 * dim, attention)
        self.deep = mlp(7 * dim, hidden, outputs=1, activation=nn.PReLU, dropout=dropout)

    def forward(self, x: HistoryBatch) -> Tensor:
        vectors = torch.cat([self.item(x.items), self.category(x.categories)], dim=2)
        candidate, history = vectors[:, 0], vectors[:, 1:]
        interest = self.attention(candidate, history, x.items[:, 1:] != PADDING)
        seen = torch.cat([self.user(x.user), candidate, interest, candidate * interest], dim=1)
        logit: Tensor = self.deep(seen).squeeze(1)
        return logit


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
    """Click and conversion ranker with Multi-gate Mixture-of-Experts (Ma et al., 2018). Takes a `RankBatch` and
    returns `Predictions`.

    The 37 features are in five groups. All features of a group have one embedding width. All embeddings feed shared
    experts. Each task has a gate and a tower.
    With two million ids per feature the model has a billion parameters.
    """

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
            raise errors.BadInput(f"MMoE: groups are {groups!r}; expected (width, features) of each, as in [(64, 2)]")
        check_sizes(locals(), filled=["groups"])
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


def loss(output: Tensor | Predictions, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of the logits. For the ranker, return the sum over the tasks, with conversions
    among clicks."""
    if not isinstance(output, Predictions):
        return functional.binary_cross_entropy_with_logits(output, y)
    if y.dim() != 2 or y.shape[1] != 2:
        raise errors.BadInput(f"the ranker needs labels [B, 2] (click, conversion), got {list(y.shape)}")
    click, conversion = y[:, 0], y[:, 1]
    of_click = functional.binary_cross_entropy_with_logits(output.ctr, click)
    losses = functional.binary_cross_entropy_with_logits(output.cvr, conversion, reduction="none")
    return of_click + (losses * click).sum() / torch.clamp(click.sum(), min=1)
