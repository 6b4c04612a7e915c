"""What a model's forward takes: named tuples of batch tensors, one kind for each family of models.

In: data sets of the zoo (`clickdata`, the readers). Next: the models, which look tables up directly on views of these
tensors (`sparse[:, i:i + 1]`, `items`), so that a trainer that sees the batch first can fetch the rows ahead.
"""

from typing import NamedTuple

from torch import Tensor


class ClickBatch(NamedTuple):
    """Click-through models: counters and one id a field."""

    dense: Tensor
    """float32 [B, dense features]; 13 in Criteo's layout."""
    sparse: Tensor
    """int64 [B, fields]; 26 in Criteo's layout."""


class RankBatch(NamedTuple):
    """The multi-task ranker: ids only."""

    sparse: Tensor
    """int64 [B, fields]; 37 in the ranker of the zoo."""


class PairBatch(NamedTuple):
    """Collaborative filtering: who and what."""

    user: Tensor
    """int64 [B]."""
    item: Tensor
    """int64 [B]."""


class HistoryBatch(NamedTuple):
    """Attention over what a user did before. Column 0 is the candidate, the others the history; id 0 pads."""

    user: Tensor
    """int64 [B]."""
    items: Tensor
    """int64 [B, 1 + history]."""
    categories: Tensor
    """int64 [B, 1 + history]: the category of each of `items`."""


Batch = ClickBatch | RankBatch | PairBatch | HistoryBatch
