"""The trainer's part of the second rung: the user's own forward, whose calls of torch's are answered from what crossed.

In: what crossed, and the model's inputs. Forward runs as it is, in Python. A call that is known by its key
(prep/terms.py) is not made: one whose value crossed gives that, any other a promise, which is kept by making the call
after all, if somebody wants more of it than to hand it to the next known call. So a forward that goes another way than
it did is never wrong, only slower. Made by: prep/hearing.py, in whichever process; it is bound to none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from springtide.prep import leaves
from springtide.prep.captured import State
from springtide.prep.leaves import Shape
from springtide.prep.promises import Pool, Promise, Promised, kept
from springtide.prep.stages import put
from springtide.prep.statefulness import Refused
from springtide.prep.terms import Key, Leaf, Part, Term, Terms, parts_in, writes


class Known(NamedTuple):
    """A call that need not be made."""

    number: int
    gives: Shape
    terms: tuple[Term, ...]
    """What each part of its result is: its own, or what was there before it."""


@dataclass(frozen=True, slots=True)
class Answering:
    """A callable over (crossing, leaves)."""

    forward: Callable[..., Any]
    shape: Shape
    """Of (args, kwargs)."""
    tensors: frozenset[int]
    """Numbers of the leaves that are tensors."""
    held: tuple[State, ...]
    """Buffers that known calls read."""
    known: Mapping[Key, Known]
    answers: Mapping[Part, int]
    """What a known call gives -> its place among what crosses."""
    devices: tuple[str, ...]
    """Where forward wants each value that crosses."""
    tape: "Tape" = field(default_factory=lambda: Tape(), compare=False)

    @property
    def reads(self) -> frozenset[int]:
        """Leaves that known calls take: perhaps nobody else does."""
        return frozenset(term.number for key in self.known for term in parts_in(key) if isinstance(term, Leaf))

    def __call__(self, crossing: Sequence[Any], given: Sequence[Any]) -> Any:
        """What forward returns."""
        there = [put(one, device) for one, device in zip(crossing, self.devices, strict=True)]
        inputs = [
            leaf if at not in self.tensors or isinstance(leaf, torch.Tensor) else Promise(_LeftBehind(), at)
            for at, leaf in enumerate(given)
        ]
        args, kwargs = self.shape.rebuild(inputs)
        try:
            with _Answers(self, there, inputs):
                result = self.forward(*args, **kwargs)
        finally:
            self.tape.pool.settle()
        parts, shape = leaves.flatten(result)
        return shape.rebuild(kept(parts)) if any(isinstance(part, Promise) for part in parts) else result


class Tape:
    """What came after what. Most forwards make the same calls in the same order: quicker to see than to look up.

    For one process; it is not written down with what it belongs to.
    """

    def __init__(self) -> None:
        self.first = Entry(None, (), None, None)
        self.entries: dict[int, Entry] = {}
        self.functions: set[Any] = set()
        self.pool = Pool()

    def __reduce__(self) -> Any:
        return Tape, ()


class Entry:
    """A known call, as this process makes it."""

    __slots__ = ("args", "func", "known", "kwargs", "next")

    def __init__(self, func: Any, args: Any, kwargs: Any, known: Known | None) -> None:
        self.func, self.args, self.kwargs, self.known = func, args, kwargs, known
        self.next: Entry | None = None


class _Answers(TorchFunctionMode):
    """One forward, answered."""

    def __init__(self, to: Answering, crossing: Sequence[Any], given: Sequence[Any]) -> None:
        super().__init__()
        held = {state.path: state.live() for state in to.held}
        self._known, self._answers, self._crossing, self._tape = to.known, to.answers, crossing, to.tape
        self._terms = Terms(given, held)
        self._waiting = set(to.answers.values())
        self._last = to.tape.first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An answer, a promise, or what the function gives."""
        if self._waiting and not casts():
            known = self._next(func, args, kwargs)
            if known is not None:
                return self._answer(known, func, args, kwargs or {})
        kwargs = kwargs or {}
        if writes(func, kwargs):
            self._before_writing(args, kwargs)
        return func(*args, **kwargs)

    def _next(self, func: Any, args: Any, kwargs: Any) -> Known | None:
        """The known call that this is: the one that came next the last time, or any other."""
        entry = self._last.next
        if entry is not None and func is entry.func and self._terms.told_as(entry.args, entry.kwargs, args, kwargs):
            self._last = entry
            return entry.known
        if len(self._tape.entries) == len(self._known) and func not in self._tape.functions:
            return None
        key = self._terms.key(func, args, kwargs or {})
        known = None if key is None else self._known.get(key)
        if key is not None and known is not None:
            entry = self._tape.entries.get(known.number)
            if entry is None:
                _, told, named = key
                entry = Entry(func, told, named, known)
                self._tape.entries[known.number] = entry
                self._tape.functions.add(func)
            self._last.next, self._last = entry, entry
        return known

    def _before_writing(self, args: Any, kwargs: Any) -> None:
        """Promises are of what is there until now."""
        if self._terms.lying_in(args, kwargs):
            for promise in self._tape.pool.waiting():
                promise.keep()
            self._terms.forget(self._terms.lying_in(args, kwargs))

    def _answer(self, known: Known, func: Any, args: Any, kwargs: Any) -> Any:
        giver = Promised(func, args, kwargs)
        if known.gives.kind is None:
            return self._part(known, 0, giver)
        return known.gives.rebuild([self._part(known, at, giver) for at in range(len(known.terms))])

    def _part(self, known: Known, at: int, giver: Promised) -> Any:
        """What crossed, the first time that it is asked for: who asks again wants memory of its own."""
        term = known.terms[at]
        if type(term) is not Part or term.call != known.number:
            return self._terms.value(term)
        place = self._answers.get(term)
        if place in self._waiting:
            self._waiting.remove(place)
            value = self._crossing[place]
        else:
            value = self._tape.pool.take(giver, at)
        if isinstance(value, torch.Tensor):
            self._terms.name(value, term)
        return value


class _LeftBehind:
    """The model's inputs, of which not all are here."""

    def part(self, at: int) -> Any:
        """There is nothing to promise."""
        raise Refused(f"forward() reads input {at} itself, which has stayed behind")


def casts() -> bool:
    """Whether calls are made in other types than they are written in."""
    enabled: bool = torch._C._is_any_autocast_enabled()
    return enabled
