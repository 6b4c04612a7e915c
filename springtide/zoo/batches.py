"""Inputs of the models: named tuples of batch tensors, one for each family of models.

In: data sets of the zoo (`clicklog.dataset`, the readers). Next: the models. Models look tables up directly on views of
these tensors (`sparse[:, i:i + 1]`, `items`), so that a trainer can prefetch rows from the batch.
"""

from typing import NamedTuple

from torch import Tensor


class ClickBatch(NamedTuple):
    """Input of click-through models: counters, and one id per field."""

    dense: Tensor
    """Counters, float32 [B, dense features]; 13 in Criteo's layout."""
    sparse: Tensor
    """Ids, int64 [B, fields]; 26 in Criteo's layout."""


class RankBatch(NamedTuple):
    """Input of the multi-task ranker: ids only."""

    sparse: Tensor
    """Ids, int64 [B, fields]; 37 in the ranker of the zoo."""


class PairBatch(NamedTuple):
    """Input of collaborative filtering: users and items."""

    user: Tensor
    """User ids, int64 [B]."""
    item: Tensor
    """Item ids, int64 [B]."""


class HistoryBatch(NamedTuple):
    """Input of attention over a user's history. Column 0 is the candidate, the others are the history;
    id 0 is padding.
    """

    user: Tensor
    """User ids, int64 [B]."""
    items: Tensor
    """Item ids, int64 [B, 1 + history]."""
    categories: Tensor
    """Category ids of `items`, int64 [B, 1 + history]."""


Batch = ClickBatch | RankBatch | PairBatch | HistoryBatch
