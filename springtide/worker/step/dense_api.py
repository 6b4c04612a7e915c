"""What a step asks of the place where dense parameters are updated: servers (served_dense.py), this process
(local_dense.py).

In: step.py, step by step. Next: one of those two.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from springtide.worker.link.optimizer import JobOptimizer


class Dense(Protocol):
    """Where dense parameters are updated."""

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        """Before anything is applied: the group's gradient, and whether the step is skipped."""
        ...

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        """What of it goes out with the push."""
        ...

    def update(self, stepped: Sequence[JobOptimizer], tables: Sequence[nn.Parameter]) -> None:
        """After the push is sent."""
        ...

    def settle(self) -> None:
        """The latest values into the model, waiting for them."""
        ...
