"""Dot products of all pairs of a sample's vectors, fast forwards and backwards on every kind of CPU.

In: vectors [B, N, D]. Out: dots [B, N, N], symmetric. Next: dlrm.py takes what is above the diagonal.

`torch.bmm(v, v.transpose(1, 2))` is the same, but a transposed operand costs a hundred times as much on 64-bit ARM:
oneDNN has no fast kernel for it there (290 ms against 3 at 512 x 27 x 16), and autograd meets one however it is put.
Both products here have dense operands, and since dots are symmetric one product is the whole gradient, not two.
"""

from typing import Any

import torch
from torch import Tensor


class Dots(torch.autograd.Function):
    """V Vᵀ, whose gradient is (G + Gᵀ) V."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        """One product with a dense copy of the transposed side."""
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2).contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """One product for both sides; made of differentiable steps, so it can be differentiated again."""
        (vectors,) = ctx.saved_tensors
        gradient = gradients[0].to(vectors.dtype)  # under autocast the dots were of a smaller type
        return torch.bmm((gradient + gradient.transpose(1, 2)).contiguous(), vectors)


def of_all_pairs(vectors: Tensor) -> Tensor:
    """Dot products of each vector with each other of its sample."""
    dots: Tensor = Dots.apply(vectors)  # type: ignore[no-untyped-call]
    return dots
