"""`@springtide.stateless`, and the state that functions marked with it read, in the trainer and on data workers.

The mark is for code without torch calls: strings, NumPy, other libraries. Springtide verifies the mark: a marked
function stays in the trainer if it reaches state that cannot be watched, changes state that it reads, or draws random
numbers. Data workers run a copy of the function and of the modules that own it. These copies have no parameters.
"""

import functools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn

from springtide.dataworker.split.recorder.reachable_state import TORCHS_OWN, ReachableState

PREFIX = "marked:"


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a marked function, in the same form as the names of torch functions."""
    return f"{PREFIX}{function.__module__}:{function.__qualname__}"


class MarkedCall:
    """A single call of a marked function, checked for side effects."""

    def __init__(self, function: Callable[..., Any], owners: Mapping[str, nn.Module]) -> None:
        """Record the state before the call. `owners`: modules among the arguments of the call, by path."""
        self.state = state_of({name_of(function): function}, owners)
        self._chance = _chance()

    @property
    def why(self) -> str:
        if self.state.opaque:
            return f"it reads {self.state.opaque[0]}, which cannot be watched"
        if changed := self.state.changed():
            return f"it changes {changed}"
        return "it draws random numbers" if _chance() != self._chance else ""


def state_of(functions: Mapping[str, Callable[..., Any]], owners: Mapping[str, nn.Module]) -> ReachableState:
    """Return all state that marked functions read. The state of modules is also the state that data workers get."""
    roots: dict[str, Any] = {function.__name__: function for function in functions.values()}
    roots.update({f"model.{path}" if path else "model": owner for path, owner in owners.items()})
    return ReachableState(roots, parameters=False)


def without_parameters(module: nn.Module) -> nn.Module:
    """Return a copy of a module for data workers: plain attributes and buffers, no parameters."""
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
    """The marked functions of a program, and the modules that own them. These functions and modules are sent with the
    program."""

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    owners: Mapping[str, nn.Module] = field(default_factory=dict)
    """Module copies without parameters, by path in the model."""
    _state: ReachableState | None = None
    _changed: str = ""

    def __reduce__(self) -> Any:
        return MarkedCode, (self.functions, self.owners)

    def begin(self) -> str:
        """Check the state before a batch. Return the reason why the functions may no longer be called; empty if they
        may be called."""
        if self.functions and self._state is None:
            self._state = state_of(self.functions, self.owners)
        return self._changed

    def end(self) -> str:
        """Check the state after a batch. Return the name of the state that the functions changed; empty if they changed
        none.
        """
        if self._state is not None and not self._changed and (changed := self._state.changed(lenient=True)):
            self._changed = f"a function marked @springtide.stateless has changed {changed}"
        return self._changed


P = ParamSpec("P")
R = TypeVar("R")

Listener = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Handler that receives the function and its arguments, and returns its result."""

_hearing = threading.local()


def stateless(function: Callable[P, R]) -> Callable[P, R]:
    """Declare that `function` (or method) depends only on its arguments and on constants of its object.

    The function must not read parameters, write anything, or draw random numbers. Data workers may then call it instead
    of the trainer.
    """

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        # `stateless` wraps a function in a module-level helper, which is pickled by name. cloudpickle would pickle a
        # script's own functions with everything that they use.
        answer: R = _called(function, args, kwargs)
        return answer

    marked.__springtide_stateless__ = True  # type: ignore[attr-defined]
    return marked


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    listener: Listener | None = getattr(_hearing, "listener", None)
    return function(*args, **kwargs) if listener is None else listener(function, args, kwargs)


@contextmanager
def handled_by(listener: Listener | None) -> Iterator[None]:
    """Let `listener` handle this thread's calls of marked functions inside the context. If `listener` is None, the
    functions run directly.
    """
    before = listen(listener)
    try:
        yield
    finally:
        listen(before)


def listen(listener: Listener | None) -> Listener | None:
    """Let `listener` handle this thread's calls of marked functions from now on. Return the previous listener."""
    before: Listener | None = getattr(_hearing, "listener", None)
    _hearing.listener = listener
    return before


def _chance() -> Any:
    """Return the states of all global generators, with the second normal deviate that NumPy may hold."""
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().numpy().tobytes()
