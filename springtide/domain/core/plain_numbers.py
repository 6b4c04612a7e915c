"""Pure. Numbers of NumPy and torch that a user gives become Python's own, once, where a public function is entered.

In: arguments such as `data[field].max() + 1` (numpy.int64) or `torch.tensor(0.1)`. Out: int, float or bool, which
messages, journals and the native core take. Used by: every public function and class that takes a number.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def plain(value: Any) -> Any:
    """A NumPy or torch scalar as a number of Python's; such scalars in a tuple, list or dict too; all else as it is."""
    kind = type(value)
    if kind in (tuple, list):
        return kind(map(plain, value))
    if kind is dict:
        return {name: plain(each) for name, each in value.items()}
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        return value.item()
    return value


def takes_numbers(*leave: str) -> Callable[[Function], Function]:
    """Give a function plain numbers. Arguments named in `leave` stay the objects that they are, such as data sets."""

    def decorate(function: Function) -> Function:
        names = list(inspect.signature(function).parameters)
        left = {number for number, name in enumerate(names) if name in leave}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            own = [arg if number in left else plain(arg) for number, arg in enumerate(args)]
            return function(*own, **{name: arg if name in leave else plain(arg) for name, arg in kwargs.items()})

        return call  # type: ignore[return-value]

    return decorate


def holds_numbers(kind: Class) -> Class:
    """Give the fields of a class plain numbers: `takes_numbers` for its `__init__`."""
    kind.__init__ = takes_numbers("self")(kind.__init__)  # type: ignore[misc]
    return kind
