"""Dense parameters in this process: the user's optimizer updates them, after the group's all-reduce if there is one.

In: step.py, when the loop has stepped. Used alone and in bsp mode; in async mode dense.py serves them instead.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.train.allreduce import Reducer
from springtide.train.optimizer import JobOptimizer


class LocalDense:
    """Runs the user's optimizers on what is not a table."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], reducer: Reducer | None) -> None:
        self._named = list(named)
        self._reducer = reducer

    def agree(self, *, share: float, skip: bool) -> bool:
        """Sum gradients over the group; returns whether the step is to be skipped. Not-a-number is refused here."""
        if self._reducer is not None:
            skip = self._reducer.reduce(share=share, skip=skip)
        if not skip:
            check_finite(self._named)
        return skip

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        """Nothing of dense goes to a server."""
        return []

    def update(self, stepped: Sequence[JobOptimizer], tables: "Sequence[nn.Parameter]") -> None:
        """Step the user's optimizers; gradients of tables are kept from them."""
        kept = [(weight, weight.grad) for weight in tables]
        for weight in tables:
            weight.grad = None
        for optimizer in stepped:
            optimizer.own.step()
        for weight, grad in kept:
            weight.grad = grad

    def settle(self) -> None:
        """Values are always here."""


def check_finite(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse a step whose dense gradient has NaN or infinity in it, naming the parameter."""
    grads = [param.grad for _, param in named if param.grad is not None and not param.grad.is_sparse]
    if not grads or math.isfinite(sum(float(norm) for norm in torch._foreach_norm(grads, 1))):
        return
    for name, param in named:
        if param.grad is not None and not bool(param.grad.isfinite().all()):
            bad = int((~param.grad.isfinite()).sum())
            raise errors.NonFiniteGradient(
                f"the gradient of parameter {name!r} has NaN or infinity in {bad} of {param.grad.numel()} places; "
                "nothing of this step was applied. Lower the learning rate, clip gradients, or look at this batch"
            )
