"""Calls of functions marked `@springtide.stateless`: what they read is watched on both sides.

In: a marked function and the modules that it is a method of. A copy of what they reach runs on data workers, modules
without parameters. The mark is checked: a function that reaches unwatchable state, changes what it reads, or draws
random numbers stays with the trainer. Used by: call_recorder.py, dataworker/split/search/split.py.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide.dataworker.split.recorder.reachable_state import TORCHS_OWN, ReachableState

PREFIX = "marked:"


def name_of(function: Callable[..., Any]) -> str:
    """What a marked function is called among torch's."""
    return f"{PREFIX}{function.__module__}:{function.__qualname__}"


class MarkedCall:
    """One call of a marked function: whether it left everything unchanged."""

    def __init__(self, function: Callable[..., Any], owners: Mapping[str, nn.Module]) -> None:
        """`owners`: modules that it is given, by path."""
        self.state = state_of({name_of(function): function}, owners)
        self._chance = _chance()

    @property
    def why(self) -> str:
        """Why the call cannot move; "": nothing speaks against it."""
        if self.state.opaque:
            return f"it reads {self.state.opaque[0]}, which cannot be watched"
        if changed := self.state.changed():
            return f"it changes {changed}"
        return "random numbers" if _chance() != self._chance else ""


def state_of(functions: Mapping[str, Callable[..., Any]], owners: Mapping[str, nn.Module]) -> ReachableState:
    """All that marked functions read, of modules what travels."""
    roots: dict[str, Any] = {one.__name__: one for one in functions.values()}
    roots.update({f"model.{path}" if path else "model": one for path, one in owners.items()})
    return ReachableState(roots, parameters=False)


def without_parameters(module: nn.Module) -> nn.Module:
    """A copy of a module for its methods to run on elsewhere: plain attributes and buffers, no parameters."""
    copy: nn.Module = object.__new__(type(module))
    nn.Module.__init__(copy)
    copy.training = module.training
    for name, value in vars(module).items():
        if name not in TORCHS_OWN and not (isinstance(value, torch.Tensor) and value.requires_grad):
            object.__setattr__(copy, name, value)
    for name, buffer in module._buffers.items():
        copy._buffers[name] = None if buffer is None else buffer.detach().clone()
    for name, child in module._modules.items():
        copy._modules[name] = None if child is None else without_parameters(child)
    return copy


@dataclass(slots=True)
class MarkedCode:
    """The marked functions of a program, and the modules they are methods of: what travels with it."""

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    owners: Mapping[str, nn.Module] = field(default_factory=dict)
    """By path under the model; copies without parameters."""
    _state: ReachableState | None = None
    _changed: str = ""

    def __reduce__(self) -> Any:
        return MarkedCode, (self.functions, self.owners)

    def begin(self) -> str:
        """Before a batch: why the functions may not be called any more; "": they may."""
        if self.functions and self._state is None:
            self._state = state_of(self.functions, self.owners)
        return self._changed

    def end(self) -> str:
        """After a batch: whether they have changed what they read."""
        if self._state is not None and not self._changed and (changed := self._state.changed(lenient=True)):
            self._changed = f"a function marked @springtide.stateless has changed {changed}"
        return self._changed


def _chance() -> Any:
    return random.getstate(), np.random.get_state(legacy=False).__repr__(), torch.get_rng_state().numpy().tobytes()
