"""Dense parameters in this process: the user's optimizer updates them, after the group's all-reduce if there is one.

In: step.py, when the loop has stepped. Used alone and in bsp mode; in async mode dense.py serves them instead.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from springtide.train.allreduce import Reducer
from springtide.train.finite import check_finite
from springtide.train.optimizer import JobOptimizer


class LocalDense:
    """Runs the user's optimizers on what is not a table."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], reducer: Reducer | None) -> None:
        self._named = [(f"parameter {name!r}", param) for name, param in named]
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
