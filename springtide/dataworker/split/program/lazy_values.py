"""A tensor that is promised: an input or a result of the moved part, which becomes real only if somebody reads it.

In: who answers for it. Out: something that is a tensor to everyone. Every torch call with one among its arguments is
seen: it is answered, or made with the tensors themselves. Given out by: dataworker/split/program/call_replay.py. Nearly
all of them are only handed to the next moved call, and never computed.
"""

import sys
import threading
from collections.abc import Sequence, Set
from typing import Any, ClassVar, Protocol

import torch
from torch.utils import _pytree


class Answerer(Protocol):
    """Who gives out promises while a forward runs."""

    thread: int

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a torch call gives that has a promise among its arguments."""
        ...

    def compute(self, slot: int) -> Any:
        """What was promised."""
        ...


class Promise(torch.Tensor):
    """Stands for a tensor; becomes it when it is touched."""

    springtide_absent = True
    """By which others know that its values may not be here: embedding/lookup/id_routes.py."""
    springtide_running: ClassVar[Answerer | None] = None
    springtide_slot: int
    """Its place among the inputs and results of a forward."""
    springtide_made: Any
    """The tensor itself, once forward is over."""

    @staticmethod
    def __new__(cls, dtype: torch.dtype, device: str, slot: int) -> "Promise":
        """Of a tensor of this kind."""
        made: Promise = torch.Tensor._make_wrapper_subclass(
            cls, (), dtype=dtype, device=torch.device(device), dispatch_sizes_strides_policy="sizes"
        )
        made.springtide_slot, made.springtide_made = slot, None
        return made

    def __init__(self, dtype: torch.dtype, device: str, slot: int) -> None:
        """Everything is done by then."""

    def here(self) -> Any:
        """The tensor itself."""
        if self.springtide_made is not None:
            return self.springtide_made
        running = type(self).springtide_running
        assert running is not None, "a promise that outlives its forward is kept by then"
        return running.compute(self.springtide_slot)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An answer, or whatever is done with it is done with the tensor."""
        running = cls.springtide_running
        if running is not None and running.thread == threading.get_ident():
            return running.call(func, args, kwargs)
        return func(*here(args), **here(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """For whoever comes past Python: the tensor itself."""
        return func(*here(args), **here(kwargs or {}))


def here(tree: Any) -> Any:
    """The same with the tensors themselves."""
    return _pytree.tree_map(lambda leaf: leaf.here() if isinstance(leaf, Promise) else leaf, tree)


class Promises:
    """One promise for each slot, given out once a forward. One that somebody keeps is replaced by a new one."""

    ALONE = 2  # references to one that nobody holds: the list's, the argument of getrefcount
    OWN = 2  # attributes that a promise has if nobody else has given it any
    COUNTS = hasattr(torch.Tensor, "_use_count")

    def __init__(self, kinds: Sequence[tuple[torch.dtype, str] | None]) -> None:
        """`kinds`: dtype and device of each slot; None: what is there is no tensor."""
        self.type: Any = type("Promise", (Promise,), {})
        """Of these promises: `springtide_running` is set in it."""
        self._kinds = kinds
        self._all: list[Any] = [self._new(slot) for slot in range(len(kinds))]
        self._out: list[int] = []

    def _new(self, slot: int) -> Any:
        kind = self._kinds[slot]
        return None if kind is None else self.type(*kind, slot)

    def take(self, slot: int) -> Any:
        """The promise of a slot."""
        self._out.append(slot)
        return self._all[slot]

    def settle(self) -> None:
        """Forward is over: those that somebody holds are computed now, and are theirs."""
        every, count = self._all, sys.getrefcount
        kept = [slot for slot in self._out if count(every[slot]) > self.ALONE]
        with torch._C.DisableTorchFunctionSubclass():  # to be asked about itself, not about what it stands for
            kept += [slot for slot in self._out if not self._is_as_new(slot)]
        for slot in dict.fromkeys(kept):
            every[slot].springtide_made = every[slot].here()
            every[slot] = self._new(slot)
        self._out.clear()

    def _is_as_new(self, slot: int) -> bool:
        one = self._all[slot]
        alone = self.COUNTS and one._use_count() == 1
        return alone and one.springtide_slot == slot and len(one.__dict__) == self.OWN

    def compute(self, known: Set[int]) -> None:
        """Compute all that are held by somebody: what they are made of is about to change. Those of these slots are
        held once more, by who gives them out."""
        for slot in self._out:
            if sys.getrefcount(self._all[slot]) > self.ALONE + (slot in known):
                self._all[slot].here()

    def drop(self) -> None:
        """Forward has failed: what was given out is not given out again."""
        for slot in self._out:
            self._all[slot] = self._new(slot)
        self._out.clear()
