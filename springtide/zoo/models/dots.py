"""Dot products of all pairs of a sample's vectors, fast in both directions on every kind of CPU.

In: vectors [B, N, D]. Out: symmetric dots [B, N, N]. Next: dlrm.py takes the part above the diagonal.

`torch.bmm(v, v.transpose(1, 2))` gives the same result. On 64-bit ARM a transposed operand costs a hundred times as
much, because oneDNN has no fast kernel for it (290 ms against 3 at 512 x 27 x 16). Autograd would use a transposed
operand in any formulation. Both products here have dense operands. Dots are symmetric, so the gradient needs one
product instead of two.
"""

from typing import Any

import torch
from torch import Tensor


class Dots(torch.autograd.Function):
    """V Vᵀ, with the gradient (G + Gᵀ) V."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        """Multiply by a dense copy of the transpose."""
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2).contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Compute the gradient of both sides in one product; its steps are differentiable again."""
        (vectors,) = ctx.saved_tensors
        gradient = gradients[0].to(vectors.dtype)  # under autocast the dots have a smaller type
        return torch.bmm((gradient + gradient.transpose(1, 2)).contiguous(), vectors)


def of_all_pairs(vectors: Tensor) -> Tensor:
    """Return the dot products of all pairs of vectors of each sample."""
    dots: Tensor = Dots.apply(vectors)  # type: ignore[no-untyped-call]
    return dots
