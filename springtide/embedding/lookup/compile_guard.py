"""Load torch's compiler only when somebody compiles: a worker then starts in half the time.

torch.optim and `torch.compiler.disable` mark functions as not to be compiled, and load the compiler to do so:
`torch._dynamo`, 1.5 s of a core in every worker that starts. Here such functions run as they are until somebody else
loads the compiler; from then on torch goes its own way. So does torch's own `step` of a dense optimizer, at the first:
workers of async jobs gain, whose dense parameters are stepped on servers; in a bsp group and alone it is put off only.
In: functions. Called by `st.join()`, and for what is ours in a model.
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
MARK = "__dynamo_disable"  # where torch/_compile.py keeps a function as the compiler marked it
_waiting: "weakref.WeakSet[FunctionType]" = weakref.WeakSet()


def wait_for_compiler() -> None:
    """Let the marked methods of all optimizers run as they are until the compiler is there. Does nothing twice."""
    for method in vars(torch.optim.Optimizer).values():
        if isinstance(method, FunctionType) and method.__code__.co_filename == torch._compile.__file__:
            _wait(getattr(method, "__wrapped__", None))


def outside_graphs(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.compiler.disable` makes of a function: a compiled model leaves its graph to call it."""
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
    """Hears of the compiler before it is loaded, and finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == COMPILER:
            for plain in _waiting:
                vars(plain).pop(MARK, None)
            _waiting.clear()
        return None
