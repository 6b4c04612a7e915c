"""Defer loading torch's compiler until the script compiles something, because loading takes 1.5 s of one core per
worker.

torch.optim and `torch.compiler.disable` mark functions that must not be compiled, and marking loads `torch._dynamo`.
This module runs such functions without the mark until other code loads the compiler. From then on, torch behaves as
usual.
"""

import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

COMPILER = "torch._dynamo"
MARK = "__dynamo_disable"  # attribute where torch/_compile.py stores the marked function
_waiting: "weakref.WeakSet[FunctionType]" = weakref.WeakSet()


def wait_for_compiler() -> None:
    """Run the marked methods of all optimizers unmarked until the compiler loads. A second call does nothing."""
    for method in vars(torch.optim.Optimizer).values():
        if isinstance(method, FunctionType) and method.__code__.co_filename == torch._compile.__file__:
            _wait(getattr(method, "__wrapped__", None))


def outside_graphs(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function like `torch.compiler.disable`: a compiled model leaves its graph to call it."""
    marked: Callable[..., Any] = torch._compile._disable_dynamo(plain)
    _wait(plain)
    return marked


def _wait(plain: Any) -> None:
    if isinstance(plain, FunctionType) and not hasattr(plain, MARK) and COMPILER not in sys.modules:
        if not any(isinstance(finder, _CompilerComes) for finder in sys.meta_path):
            sys.meta_path.insert(0, _CompilerComes())
        setattr(plain, MARK, plain)
        _waiting.add(plain)


class _CompilerComes(importlib.abc.MetaPathFinder):
    """Import hook that removes the marks just before the compiler loads. The hook finds no module itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == COMPILER:
            for plain in _waiting:
                vars(plain).pop(MARK, None)
            _waiting.clear()
        return None
