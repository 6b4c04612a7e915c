"""Which of the calls that a forward makes give the values that cross: the second rung's program, found in eager code.

In: a model, its calls, and a stage that gives values for each; dynamo has named the user's line and the operation that
each comes from, and has rewritten the rest. Forward is run as it is, and listened to. Out: `Answering`, which knows the
calls again by their keys (prep/terms.py). A value is taken for another only if they are equal bit by bit on every batch
at hand and come from the same line; then it is verified like any split.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from springtide.prep import captured, leaves
from springtide.prep.answering import Answering, Known, casts
from springtide.prep.capture import Call
from springtide.prep.captured import State
from springtide.prep.leaves import Shape
from springtide.prep.statefulness import Refused
from springtide.prep.terms import Held, Key, Part, Terms, name_of, parts_in, writes
from springtide.prep.untouched import same

NUMBERS = ("item", "__int__", "__float__", "__bool__", "__index__")
"""Calls whose result is a number that may cross."""


class Said(NamedTuple):
    """A call of torch's that was heard."""

    name: str
    line: str
    gives: Shape
    parts: tuple[Any, ...]
    """As they were then."""
    terms: tuple[Any, ...]
    """Of each part; one that was there before has its own."""


class Book:
    """Calls by their keys, over several forwards."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def number(self, key: Key) -> int:
        """Of a call; a new one, if it was not heard before."""
        if key not in self._numbers:
            self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return self._numbers[key]


class Hearing(TorchFunctionMode):
    """One forward, listened to."""

    def __init__(self, book: Book, call: Call, held: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.said: dict[int, Said] = {}
        self._book, self._terms = book, Terms(call.leaves, held)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Everything is done as it would be."""
        kwargs = kwargs or {}
        key = self._terms.key(func, args, kwargs)
        result = func(*args, **kwargs)
        if writes(func, kwargs):
            self._terms.forget(self._terms.lying_in(args, kwargs))
        elif key is not None:
            self._hear(key, func, result)
        return result

    def _hear(self, key: Key, func: Any, result: Any) -> None:
        parts, gives = leaves.flatten(result)
        number = self._book.number(key)
        if number in self.said:
            terms = self.said[number].terms
        else:
            terms = tuple([self._term(part) or Part(number, at) for at, part in enumerate(parts)])
            seen = tuple([one.detach().clone() if isinstance(one, torch.Tensor) else one for one in parts])
            self.said[number] = Said(name_of(func), _line(), gives, seen, terms)
        for part, term in zip(parts, terms, strict=True):
            if isinstance(part, torch.Tensor):
                self._terms.name(part, term)

    def _term(self, part: Any) -> Any:
        return self._terms.of(part) if isinstance(part, torch.Tensor) else None


def audible(crossing: Sequence[fx.Node]) -> list[fx.Node]:
    """Instead of what Python makes of numbers (a comparison, a sum), the numbers themselves as tensors give them."""
    found: dict[fx.Node, None] = {}
    queue = list(crossing)
    while queue:
        node = queue.pop(0)
        value = node.meta.get("example_value")
        if node.op == "placeholder" or (node.op == "call_function" and node.target is torch.ops.aten.sym_size.int):
            continue
        if isinstance(value, torch.Tensor) or node.op == "call_method" or value is None:
            found[node] = None
        else:
            queue += node.all_input_nodes
    return list(found)


class Wanted(NamedTuple):
    """A value that crosses, as dynamo knows it."""

    line: str
    operation: str

    @classmethod
    def of(cls, node: fx.Node) -> "Wanted":
        """Of the node that makes it."""
        return cls(captured.where(node)[0], captured.operation(node))


def find(
    model: nn.Module,
    calls: Sequence[Call],
    crossings: Sequence[Sequence[Any] | None],
    wanted: Sequence[Wanted],
    states: Iterable[State],
    aside: AbstractContextManager[None],
    devices: Sequence[str],
) -> Answering:
    """A forward that answers its own calls from what crosses. `Refused` where a tensor that crosses was not heard.

    `crossings`: what the stage made of each call; None: it takes no such batch. `aside`: within it, tables stand aside.
    """
    if casts():
        raise Refused("forward() runs under autocast")
    held = {state.path: state for state in states}
    book, heard = Book(), list[tuple[Hearing, Sequence[Any]]]()
    with aside:
        for call, crossing in zip(calls, crossings, strict=True):
            if crossing is not None:
                with Hearing(book, call, {path: state.live() for path, state in held.items()}) as hearing:
                    model(*call.args, **call.kwargs)
                heard.append((hearing, crossing))
    answers: dict[Part, int] = {}
    for number, one in enumerate(wanted):
        found = _places([_equal(hearing, crossing[number], one) for hearing, crossing in heard], one, heard, answers)
        if not found and isinstance(heard[0][1][number], torch.Tensor):
            raise Refused(f"{one.operation} of {one.line or 'the first graph'} is not seen when forward() itself runs")
        answers.update(dict.fromkeys(found, number))
    known = _ancestors(book, heard, answers)
    paths = {term.path for key in known for term in parts_in(key) if isinstance(term, Held)}
    return Answering(
        forward=model.forward,
        shape=calls[0].shape,
        tensors=frozenset(calls[0].tensors),
        held=tuple(held[path] for path in sorted(paths)),
        known=known,
        answers=answers,
        devices=tuple(devices),
    )


def _equal(hearing: Hearing, value: Any, wanted: Wanted) -> set[Part]:
    """Calls of one forward that gave this value, from the same line."""
    found: set[Part] = set()
    for number, said in hearing.said.items():
        if wanted.line and said.line != wanted.line:
            continue
        for at, (part, term) in enumerate(zip(said.parts, said.terms, strict=True)):
            if term == Part(number, at) and _same(part, value, said.name):
                found.add(Part(number, at))
    return found


def _same(part: Any, value: Any, name: str) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(part, torch.Tensor) and same(part.cpu(), value.cpu())
    return name.rpartition(".")[2] in NUMBERS and type(part) is type(value) and part == value


def _places(
    found: Sequence[set[Part]],
    wanted: Wanted,
    heard: Sequence[tuple[Hearing, Any]],
    taken: Mapping[Part, int],
) -> set[Part]:
    """The calls that are taken for it: the same on all batches, or each batch's own, where its size is in the key."""

    def rank(part: Part) -> tuple[Any, ...]:
        said = next(hearing.said[part.call] for hearing, _ in heard if part.call in hearing.said)
        return part in taken, wanted.operation.strip("_") not in said.name, part

    common = set.intersection(*found) if found else set()
    chosen = [common] if common else found
    return {min(parts, key=rank) for parts in chosen if parts} if all(chosen) else set()


def _ancestors(book: Book, heard: Sequence[tuple[Hearing, Any]], answers: Mapping[Part, int]) -> dict[Key, Known]:
    """The calls that need not be made: those that are answered, and those that only they are made of."""
    said = {number: one for hearing, _ in reversed(heard) for number, one in hearing.said.items()}
    queue = [part.call for part in answers]
    found: dict[Key, Known] = {}
    while queue:
        number = queue.pop()
        key, one = book.keys[number], said[number]
        own = [Part(number, at) for at, part in enumerate(one.parts) if not isinstance(part, torch.Tensor)]
        if key in found or any(part not in answers for part in own):
            continue  # a number cannot be promised
        found[key] = Known(number, one.gives, one.terms)
        queue += [term.call for term in (*parts_in(key), *one.terms) if isinstance(term, Part)]
    return found


def _line() -> str:
    """The user's own, that is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not captured.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return captured.place(frame.f_code.co_filename, frame.f_lineno)[0] if frame is not None else ""
