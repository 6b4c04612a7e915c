"""A model's forward() in two: what data workers have made of a batch goes in, and only the rest of it runs here.

In: splitting.py, with each batch that came with crossings. The rest runs in training mode, when the model is called
with the very leaves of the batch in hand, unwritten; anything else runs the user's own forward: evaluation, other
arguments, a compiled model, attributes or constants that have changed since the split was made.
"""

import copy
import functools
import logging
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from springtide.prep import arguments, leaves, standins
from springtide.prep.split import Split
from springtide.train import absent, attributes

log = logging.getLogger(__name__)


class InHand:
    """A batch that came with crossings, as it was when it came."""

    __slots__ = ("_marks", "crossing", "parts")

    def __init__(self, call: arguments.Call, batch: Any, crossing: Sequence[Any]) -> None:
        self.crossing = crossing
        self.parts = call.find(batch)
        """What of it the model is called with."""
        self._marks = [_mark(part) for part in self.parts]

    @property
    def untouched(self) -> bool:
        """Whether nobody has written to those parts."""
        return all(_mark(part) == mark for part, mark in zip(self.parts, self._marks, strict=True))


class SplitForward:
    """Stands as `forward` in the model itself until it is removed."""

    def __init__(self, model: nn.Module, call: arguments.Call, split: Split) -> None:
        functools.update_wrapper(self, model.forward)
        self.split_calls = self.whole_calls = 0
        """Calls in training mode with a batch that came with crossings: that used them, and that did not."""
        self._model, self._call, self._split = model, call, split
        self._own: Callable[..., Any] = model.forward
        self._instances_own = "forward" in vars(model)
        self._attributes = attributes.look(model, but=frozenset(map(id, standins.tables(model, ()).values())))
        self._in_hand: InHand | None = None
        self._said = ""
        model.forward = self

    def remove(self) -> None:
        """The model is the user's own again."""
        if vars(self._model).get("forward") is self:
            if self._instances_own:
                self._model.forward = self._own
            else:
                del self._model.forward

    def hand_out(self, batch: Any, crossing: Sequence[Any] | None) -> None:
        """The loop gets this batch, which came with crossings or without."""
        self._in_hand = None if crossing is None else InHand(self._call, batch, crossing)

    def taken_back(self) -> None:
        """The loop has done with it."""
        self._in_hand = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the user's own forward would give."""
        if torch.compiler.is_compiling():
            return self._own(*args, **kwargs)
        now = self._in_hand
        if now is None or not self._model.training:
            return self._own(*absent.whole(args), **absent.whole(kwargs))
        why = self._against(now, args, kwargs)
        if why:
            self.whole_calls += 1
            self._say(why)
            return self._own(*absent.whole(args), **absent.whole(kwargs))
        self.split_calls += 1
        flat, _ = leaves.flatten((args, self._call.in_order(kwargs)))
        return self._split.rest(now.crossing, flat)

    def _against(self, now: InHand, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Why what came with the batch cannot be used; "": it can."""
        if not self._call.fits(now.parts, args, kwargs):
            return "model(...) was called with something else than the leaves of its batch"
        if not now.untouched:
            return "the loop has written to its batch"
        changed = attributes.changed(self._attributes)
        return f"{changed} has changed since the split was made" if changed else self._split.stale()

    def _say(self, why: str) -> None:
        if why != self._said:
            self._said = why
            log.warning("forward() runs whole in the trainer, what data workers have made of it is unused: %s", why)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model has the user's own forward."""
        if self._instances_own:
            return copy.deepcopy(self._own, memo)
        return types.MethodType(type(self._model).forward, memo.get(id(self._model), self._model))

    def __reduce__(self) -> Any:
        """So has one that is pickled."""
        if self._instances_own:
            return functools.partial, (self._own,)
        return getattr, (self._model, "forward")  # looked up in the class: the instance has no attributes by then


def _mark(part: Any) -> Any:
    """What changes when somebody writes to it."""
    if type(part) is absent.Absent:
        return part.changed
    if isinstance(part, torch.Tensor):
        return 0 if part.is_inference() else part._version
    return tuple(part) if arguments.is_text(part) else None
