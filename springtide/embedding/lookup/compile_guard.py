"""Delays loading torch's compiler until the script compiles something, because loading it takes 1.5 s of one core in
every worker.

torch.optim and `torch.compiler.disable` mark functions that must not be compiled, and marking loads `torch._dynamo`.
The step of an optimizer also loads the compiler, because a compiled graph must break before and after the step. This
module runs such functions without the mark, and optimizer steps without the break, until other code loads the compiler.
From then on, torch behaves as usual.
"""

import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"
MARK = "__dynamo_disable"  # attribute where torch/_compile.py stores the marked function
_waiting: "weakref.WeakSet[FunctionType]" = weakref.WeakSet()
_steps: dict[FunctionType, CodeType] = {}
"""Original steps of torch's optimizers, with torch's own code but without the compiler."""


def _wait_for_compiler() -> None:
    """Until the compiler loads, run the marked methods and the steps of all optimizers without their marks."""
    sys.meta_path.insert(0, _CompilerComes())
    for method in vars(torch.optim.Optimizer).values():
        if isinstance(method, FunctionType) and method.__code__.co_filename == torch._compile.__file__:
            _wait(getattr(method, "__wrapped__", None))
    for optimizer in vars(torch.optim).values():
        _step_alone(getattr(optimizer, "step", None))


def outside_graphs(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as `torch.compiler.disable` does: a compiled model leaves its graph to call it."""
    marked: Callable[..., Any] = torch._compile._disable_dynamo(plain)
    _wait(plain)
    return marked


def _wait(plain: Any) -> None:
    if isinstance(plain, FunctionType) and not hasattr(plain, MARK) and COMPILER not in sys.modules:
        setattr(plain, MARK, plain)
        _waiting.add(plain)


def _step_alone(step: Any) -> None:
    """Let a step that breaks graphs run without compilation."""
    while isinstance(step, FunctionType):
        if "graph_break" in step.__code__.co_names and step.__code__.co_freevars == _PLAIN_STEP.co_freevars:
            _steps[step] = step.__code__
            step.__code__ = _PLAIN_STEP
        step = getattr(step, "__wrapped__", None)


def _plain_step(func: Callable[..., Any]) -> FunctionType:
    """Return a step with torch's usual work around it, but without the graph breaks."""

    def step(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    assert isinstance(step, FunctionType)
    return step


_PLAIN_STEP = _plain_step(print).__code__


class _CompilerComes(importlib.abc.MetaPathFinder):
    """Import hook that removes the marks and restores the original code of steps, just before the compiler loads.
    The hook itself finds no module.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == COMPILER:
            for plain in _waiting:
                vars(plain).pop(MARK, None)
            _waiting.clear()
            while _steps:
                step, code = _steps.popitem()
                step.__code__ = code
        return None


if COMPILER not in sys.modules:
    _wait_for_compiler()
