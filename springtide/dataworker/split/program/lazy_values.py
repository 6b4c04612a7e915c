"""Lazy tensors ("promises") for inputs and moved results: computed only when code reads their values.

Out: a `torch.Tensor` subclass that user code can treat as a tensor. The running `ForwardReplay` (call_replay.py) sees
every torch call that takes a promise, and answers it or runs it on real tensors. Most promises only pass from one moved
call to the next, and are never computed.
"""

import operator
import sys
import threading
from collections.abc import Sequence, Set
from typing import Any, ClassVar

import torch
from torch.utils import _pytree

_uses: Any = getattr(torch.Tensor, "_use_count", None)
"""Counts the references to a tensor, including those of C++ code; None if this version of torch has no such
function.
"""


class Promise(torch.Tensor):
    """A lazy tensor that computes its value at the first access."""

    springtide_absent = True
    """Marker that values may be missing in this process; embedding/lookup/id_routes.py reads it."""
    springtide_running: ClassVar[Any] = None
    """The `ForwardReplay` that supplies values while forward() runs."""
    springtide_slot: int
    """Slot number among the inputs and results of a forward."""
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
        running = type(self).springtide_running
        assert running is not None, "a promise that outlives its forward() must have a tensor"
        return running.compute(self.springtide_slot)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the replay handle the call; after forward(), run it on real tensors."""
        running = cls.springtide_running
        if running is not None and running.thread == threading.get_ident():
            return running.call(func, args, kwargs)
        return func(*here(args), **here(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation from C++ code on the real tensors."""
        return func(*here(args), **here(kwargs or {}))


def here(tree: Any) -> Any:
    """Return the tree with real tensors in place of promises."""
    return _pytree.tree_map(lambda leaf: leaf.here() if isinstance(leaf, Promise) else leaf, tree)


class Promises:
    """Promises by slot, reused for every forward. A new promise replaces one that user code still holds."""

    ALONE = 2  # reference count of a promise that user code does not hold: the list, and the argument of getrefcount
    OWN = 2  # attributes of a promise without attributes set by user code

    def __init__(self, kinds: Sequence[tuple[torch.dtype, str] | None]) -> None:
        """Create a promise for each slot. `kinds` has dtype and device by slot; None if the slot holds no tensor."""
        self.type: Any = type("Promise", (Promise,), {})
        """Subclass for these promises, which carries their `springtide_running`."""
        self._kinds = kinds
        self._all: list[Any] = [self._new(slot) for slot in range(len(kinds))]
        self._out: list[int] = []

    def _new(self, slot: int) -> Any:
        kind = self._kinds[slot]
        return None if kind is None else self.type(*kind, slot)

    def take(self, slot: int) -> Any:
        self._out.append(slot)
        return self._all[slot]

    def settle(self) -> None:
        """Compute the promises that user code still holds after forward(), and replace them here."""
        every, out = self._all, self._out
        with torch._C.DisableTorchFunctionSubclass():  # access the promise itself, not its value
            as_new = self._are_as_new(out)
            kept = [] if as_new else [slot for slot in dict.fromkeys(out) if not self._are_as_new([slot])]
        for slot in kept:
            every[slot].springtide_made = every[slot].here()
            every[slot] = self._new(slot)
        out.clear()

    def _are_as_new(self, slots: list[int]) -> bool:
        """Return True if no other object holds these promises. Only iterators call functions here, because `settle`
        runs for every batch, for dozens of promises.
        """
        each = self._all.__getitem__
        return (
            _uses is not None
            and {self.ALONE}.issuperset(map(sys.getrefcount, map(each, slots)))
            and {1}.issuperset(map(_uses, map(each, slots)))
            and slots == [*map(operator.attrgetter("springtide_slot"), map(each, slots))]
            and {self.OWN}.issuperset(map(len, map(operator.attrgetter("__dict__"), map(each, slots))))
        )

    def compute(self, known: Set[int]) -> None:
        """Compute all promises that user code holds, before their inputs change.

        `known`: slots whose promise the caller also holds, which adds a reference.
        """
        for slot in self._out:
            if sys.getrefcount(self._all[slot]) > self.ALONE + (slot in known):
                self._all[slot].here()

    def drop(self) -> None:
        """Replace all promises after forward() has failed, because user code may still hold some promises."""
        for slot in self._out:
            self._all[slot] = self._new(slot)
        self._out.clear()
