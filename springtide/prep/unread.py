"""In place of an input that is no tensor and changes from batch to batch: whoever reads it is told that it may not be.

In: prep/split.py, which finds such inputs; names, texts, keys that a batch carries along. Where forward() can be traced
with these in their places, it reads none of them, and the traced program is right for any. Out: `Read`, raised where
the user's line is. Next: prep/guard.py holds such an input to its type only.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from springtide.prep.guard import is_equal


class Read(BaseException):
    """An input that changes was read. No `Exception`: a program that catches those must not go on without it."""


def _read(self: "Unread", *_: Any) -> NoReturn:
    raise Read(object.__getattribute__(self, "_why"))


class Unread:
    """Can be passed on, put into containers and taken out again; everything else raises `Read`, `isinstance` too."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        object.__setattr__(self, "_why", why)

    __getattribute__ = __setattr__ = __delattr__ = _read
    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __call__ = __index__ = __float__ = _read
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _read
    __repr__ = __str__ = __format__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __truediv__ = _read
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __and__ = __or__ = __xor__ = __neg__ = _read


def varying(calls: Sequence[Sequence[Any]]) -> dict[int, str]:
    """Leaves that are no tensors and not the same in all calls, by number, each with what it is."""
    first, *others = calls
    return {
        number: f"input {number} is a {_kind(leaf)} that changes from batch to batch; tracers follow tensors only"
        for number, leaf in enumerate(first)
        if not (isinstance(leaf, torch.Tensor) or all(is_equal(leaf, other[number]) for other in others))
    }


def put(leaves: Sequence[Any], unread: dict[int, str]) -> list[Any]:
    """The leaves of a call with such in the places of some."""
    return [Unread(unread[number]) if number in unread else leaf for number, leaf in enumerate(leaves)]


def _kind(leaf: Any) -> str:
    inside = f" of {type(leaf[0]).__name__}" if isinstance(leaf, list) and leaf else ""
    return f"{type(leaf).__name__}{inside}"
