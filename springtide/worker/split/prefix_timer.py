"""Time a model's forward() until it first needs a parameter: an estimate of the work that could move.

In: controller.py, for every batch. Out: seconds, extrapolated from a sample to all batches. The clock gives only an
estimate: dataworker/split/split.py finds out whether the part can be split off, and then measures it.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

EVERY = 16
"""Interval of timed batches. Hooks on every module cost microseconds each."""


class Leading:
    """Timer from the start of forward() to the first module with parameters."""

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """Estimated seconds in all batches so far."""
        self._model = model
        self._clock = clock
        self._began: float | None = None
        self._batches = 0
        self._hooks: list[Any] = []

    def hand_out(self) -> None:
        if self._batches % EVERY == 0 and not compiled(self._model):
            self._hooks.append(self._model.register_forward_pre_hook(self._begin))
            self._hooks += [one.register_forward_pre_hook(self._end) for one in with_parameters(self._model)]
        self._batches += 1

    def taken_back(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._began = None

    def _begin(self, module: nn.Module, args: Any) -> None:
        if module.training and not torch.compiler.is_compiling():
            self._began = self._clock()

    def _end(self, module: nn.Module, args: Any) -> None:
        if self._began is not None:
            self.seconds += EVERY * (self._clock() - self._began)
            self._began = None


def with_parameters(model: nn.Module) -> Iterator[nn.Module]:
    """Yield modules below this one that hold parameters; skip compiled modules, because a hook would recompile them."""
    if not compiled(model):
        for child in model.children():
            if any(True for _ in child.parameters(recurse=False)) and not compiled(child):
                yield child
            else:
                yield from with_parameters(child)


def compiled(module: nn.Module) -> bool:
    whole = type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
    return whole or isinstance(module, torch.jit.ScriptModule)
