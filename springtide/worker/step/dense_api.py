"""Interface of a step to dense parameters, on servers (served_dense.py) or in this process (local_dense.py).

In: the calls of every step. Next: served_dense.py or local_dense.py.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from springtide.worker.link.optimizer import JobOptimizer


class Dense(Protocol):
    """Store that updates dense parameters."""

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        """Compute the group's gradient before anything is applied; return True if the step is skipped."""
        ...

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]: ...

    def update(self, stepped: Sequence[JobOptimizer], tables: Sequence[nn.Parameter]) -> None: ...

    def settle(self) -> None: ...
