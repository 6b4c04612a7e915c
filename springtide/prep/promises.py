"""A tensor that is promised: what a call of torch's would give, which is made only if somebody wants to see it.

In: the call. Out: something that is a tensor to everyone. Given out by: prep/answering.py.
"""

import sys
from typing import Any, Protocol

import torch
from torch.utils import _pytree

from springtide.prep import leaves


class Giver(Protocol):
    """Who has promised."""

    def part(self, at: int) -> Any:
        """One of the values promised."""
        ...


class Promised:
    """A call that was promised: made once, if ever."""

    __slots__ = ("_call", "_parts")

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        self._call, self._parts = (func, args, kwargs), ()

    def part(self, at: int) -> Any:
        """One of the values that it gives."""
        if not self._parts:
            func, args, kwargs = self._call
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                self._parts = tuple(leaves.flatten(func(*kept(args), **kept(kwargs)))[0])
        return self._parts[at]


class Promise(torch.Tensor):
    """Stands for a tensor; becomes it when it is touched."""

    springtide_giver: Giver | None
    springtide_at: int
    springtide_made: torch.Tensor | None

    @staticmethod
    def __new__(cls, giver: Giver, at: int) -> "Promise":
        """Of one part of what is given."""
        made: Promise = torch.Tensor._make_wrapper_subclass(cls, ())
        made.springtide_giver, made.springtide_at, made.springtide_made = giver, at, None
        return made

    def __init__(self, giver: Giver, at: int) -> None:
        """Everything is done by then."""

    def keep(self) -> torch.Tensor:
        """The tensor itself."""
        if self.springtide_made is None:
            assert self.springtide_giver is not None
            self.springtide_made = self.springtide_giver.part(self.springtide_at)
        return self.springtide_made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever is done with it is done with the tensor."""
        return func(*kept(args), **kept(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """The same for whoever comes past Python."""
        return func(*kept(args), **kept(kwargs or {}))


def kept(tree: Any) -> Any:
    """The same with the tensors themselves."""
    return _pytree.tree_map(lambda leaf: leaf.keep() if isinstance(leaf, Promise) else leaf, tree)


class Pool:
    """Promises that nobody holds any more are given out again: to make one takes as long as many a small call."""

    ALONE = 3  # references to one that only the pool has: its own, a variable, the argument of getrefcount

    def __init__(self) -> None:
        self._free: list[Promise] = []
        self._out: list[Promise] = []

    def take(self, giver: Giver, at: int) -> Promise:
        """A promise."""
        if self._free:
            made = self._free.pop()
            made.springtide_giver, made.springtide_at = giver, at
        else:
            made = Promise(giver, at)
        self._out.append(made)
        return made

    def settle(self) -> None:
        """Forward is over: those that it has left nowhere, and nobody has touched, are free."""
        out, self._out = self._out, []
        while out:  # the last first: calls hold those that they were given
            one = out.pop()
            if one.springtide_made is None and sys.getrefcount(one) < self.ALONE:
                one.springtide_giver = None
                self._free.append(one)

    def waiting(self) -> list[Promise]:
        """All that are out."""
        return self._out
