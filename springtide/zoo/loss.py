"""Loss for all models of the zoo. In: a model's output and the batch's labels. Out: a scalar."""

import torch
from torch import Tensor
from torch.nn import functional

from springtide import errors
from springtide.zoo.models.mmoe import Predictions


def loss(output: Tensor | Predictions, y: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of the logits. For the ranker, sum over its tasks, with conversions among
    clicks only.
    """
    if not isinstance(output, Predictions):
        return functional.binary_cross_entropy_with_logits(output, y)
    if y.dim() != 2 or y.shape[1] != 2:
        raise errors.BadInput(f"the ranker needs labels [B, 2] (click, conversion), got {list(y.shape)}")
    click, conversion = y[:, 0], y[:, 1]
    of_click = functional.binary_cross_entropy_with_logits(output.ctr, click)
    each = functional.binary_cross_entropy_with_logits(output.cvr, conversion, reduction="none")
    return of_click + (each * click).sum() / torch.clamp(click.sum(), min=1)
