"""Refuse gradients that are not finite, and name the table or parameter.

In: step.py (tables), and local_dense.py or served_dense.py (dense parameters), with names for the message.
"""

import math
from collections.abc import Sequence

import torch

from springtide import errors


def check_finite(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise NonFiniteGradient for the first parameter with NaN or infinity in its gradient."""
    grads = [param.grad for _, param in named if param.grad is not None and not param.grad.is_sparse]
    # a 2-norm is seven times faster than a 1-norm; if large finite values overflow it, the loop below checks all
    if not grads or math.isfinite(sum(float(norm) for norm in torch._foreach_norm(grads, 2))):
        return
    for name, param in named:
        if param.grad is not None and not bool(param.grad.isfinite().all()):
            bad = int((~param.grad.isfinite()).sum())
            raise errors.NonFiniteGradient(
                f"the gradient of {name} has NaN or infinity in {bad} of {param.grad.numel()} places; nothing of this "
                "step was applied. Lower the learning rate, clip gradients, or look at this batch"
            )
