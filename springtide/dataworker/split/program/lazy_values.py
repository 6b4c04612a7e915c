"""Lazy tensors ("promises") for inputs and moved results. A promise computes its value only when code reads the value.

Out: a `torch.Tensor` subclass that user code can treat as a tensor. The running `ForwardReplay` (call_replay.py) sees
every torch call that takes a promise, and answers it or runs it on real tensors. Most promises only pass from one moved
call to the next, and never compute their value.
"""

import sys
from collections.abc import Sequence, Set
from typing import Any, ClassVar

import torch
from torch.utils import _pytree

from springtide._native import KnownCalls, add_methods, held_promises

_uses: Any = getattr(torch.Tensor, "_use_count", None)
"""Function that counts the references to a tensor, including references from C++ code. None if this version of torch
lacks this function.
"""
OWN_ATTRIBUTES = 2  # number of attributes of a promise to which user code has added none


class Promise(torch.Tensor):
    """A lazy tensor that computes its value at the first access."""

    springtide_absent = True
    """Marker that the values may be missing in this process; embedding/lookup/id_routes.py reads this marker."""
    springtide_calls: ClassVar[KnownCalls]
    """The known calls of the split. Through the known calls, the promise finds the `ForwardReplay` that supplies values
    while forward() runs.
    """
    springtide_slot: int
    """Number of the promise's slot among the inputs and results of a forward."""
    springtide_made: Any
    """The real tensor, set after forward() ends."""

    @staticmethod
    def __new__(cls, dtype: torch.dtype, device: str, slot: int) -> "Promise":
        made: Promise = torch.Tensor._make_wrapper_subclass(
            cls, (), dtype=dtype, device=torch.device(device), dispatch_sizes_strides_policy="sizes"
        )
        made.springtide_slot, made.springtide_made = slot, None
        return made

    def __init__(self, dtype: torch.dtype, device: str, slot: int) -> None:
        """Do nothing: `__new__` sets all attributes."""

    def here(self) -> Any:
        """Return the real tensor."""
        if self.springtide_made is not None:
            return self.springtide_made
        running: Any = type(self).springtide_calls.running
        assert running is not None, "a promise that outlives its forward() must have a tensor"
        return running.compute(self.springtide_slot)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation from C++ code on the real tensors."""
        return on_real(func, args, kwargs)


def on_real(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a call on real tensors."""
    return func(*here(args), **here(kwargs or {}))


def here(tree: Any) -> Any:
    """Return the tree with real tensors in place of promises."""
    return _pytree.tree_map(lambda leaf: leaf.here() if isinstance(leaf, Promise) else leaf, tree)


class Promises:
    """Promises by slot, reused for every forward. If user code still holds a promise, a new promise replaces it."""

    # reference count of a promise that user code does not hold: one reference from the list, and one from the argument
    # of getrefcount
    ALONE = 2

    def __init__(
        self, kinds: Sequence[tuple[torch.dtype, str] | None], calls: KnownCalls, functions: Set[Any] = frozenset()
    ) -> None:
        """Create a promise for each slot. `kinds` has dtype and device by slot; None if the slot holds no tensor.

        calls: handles all torch calls that take one of these promises.
        functions: functions of known calls. Promises implement these functions as methods, because methods are faster.
        """
        self._type = type("Promise", (Promise,), {"springtide_calls": calls, "__torch_function__": calls.handler})
        add_methods(self._type, set(functions))
        self._kinds = kinds
        self.all: list[Any] = [self._new(slot) for slot in range(len(kinds))]
        """Promises by slot."""
        self.moved = False
        """True if a promise now has the value of another slot, because forward() has written to it."""
        self._slots = [slot for slot, kind in enumerate(kinds) if kind is not None]

    def _new(self, slot: int) -> Any:
        kind = self._kinds[slot]
        return None if kind is None else self._type(*kind, slot)

    def settle(self) -> None:
        """Compute the promises that user code still holds after forward(), and replace each promise by its value."""
        with torch._C.DisableTorchFunctionSubclass():  # access the promise itself, not its value
            held = held_promises(self.all, _uses, OWN_ATTRIBUTES)
        for slot in held:
            self.all[slot].springtide_made = self.all[slot].here()
            self.all[slot] = self._new(slot)
        for slot in self._slots if self.moved else ():
            self.all[slot].springtide_slot = slot
        self.moved = False

    def compute(self, known: Set[int]) -> None:
        """Compute all promises that user code holds, because their inputs are about to change.

        `known` has the slots whose promise the caller holds too, which adds a reference.
        """
        for slot in self._slots:
            if sys.getrefcount(self.all[slot]) > self.ALONE + (slot in known):
                self.all[slot].here()

    def drop(self) -> None:
        """Replace all promises after forward() has failed, because user code may still hold some of them."""
        self.moved = False
        self.all[:] = [self._new(slot) for slot in range(len(self.all))]
