"""Dense parameters in this process: the user's optimizer updates them, after the group's all-reduce.

In: the step, when the loop has stepped. Used in bsp mode and without a cluster. In async mode, served_dense.py serves
dense parameters instead.
"""

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import nn

from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.link.optimizer import JobOptimizer, is_watched
from springtide.worker.step.finite import check_finite


class LocalDense:
    """Dense parameters that the user's optimizers update in this process."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        reducer: Reducer | None,
        own: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self._named = [(f"parameter {name!r}", param) for name, param in named]
        self._reducer, self._own = reducer, list(own)
        self._tables: Sequence[nn.Parameter] = ()
        self._served: Set[int] = frozenset()

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        """Sum gradients over the group and refuse NaN; return True if the step is skipped.

        `again` repeats the last call's gradients, after its group lost a member.
        """
        if self._reducer is not None:
            if not again:
                self._reducer.load(share=share, skip=skip)
            skip = self._reducer.reduce()
            self._reducer.follow(self._own)
        if not skip:
            check_finite(self._named)
        return skip

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        return []

    def update(self, stepped: Sequence[JobOptimizer], tables: "Sequence[nn.Parameter]") -> None:
        if tables is not self._tables:  # the list is always the same, so compute the ids once
            self._tables, self._served = tables, {id(weight) for weight in tables}
        working = [optimizer for optimizer in stepped if has_work(optimizer.own, self._served)]
        if not working:
            return
        kept = [(weight, weight.grad) for weight in tables]
        for weight in tables:
            weight.grad = None
        for optimizer in working:
            optimizer.own.step()
        for weight, grad in kept:
            weight.grad = grad

    def settle(self) -> None:
        """Do nothing, because values are always in this process."""


def has_work(own: torch.optim.Optimizer, served: Set[int]) -> bool:
    """Return True if a step of this optimizer can change anything beside tables, whose ids are in `served`. torch's own
    optimizers ignore parameters without a gradient.
    """
    if is_watched(own) or not type(own).__module__.startswith("torch.optim."):
        return True
    return any(
        id(param) not in served and param.grad is not None for group in own.param_groups for param in group["params"]
    )
