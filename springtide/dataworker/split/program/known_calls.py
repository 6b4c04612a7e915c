"""Matches the torch calls of a forward() with the recorded calls that moved to data workers.

In: templates of calls (value_keys.py). A forward makes dozens of moved calls for every batch, so matching must be fast:
`_native.KnownCalls` (cpp/bindings/known_calls.cpp) compares promises, numbers and constants, and answers most calls.
call_replay.py uses this module.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from springtide._native import KnownCalls, TensorConstant
from springtide.dataworker.split.program import value_keys
from springtide.dataworker.split.program.value_keys import (
    ContentKey,
    InputKey,
    NestKey,
    OwnerKey,
    PartKey,
    PlainKey,
    Term,
    TimesKey,
    TorchCall,
    keys_in,
)
from springtide.dataworker.split.recorder import torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode

NOTHING = object()
"""Placeholder for an empty slot."""
KINDS = (
    "slot",
    "input",
    "free",
    "constant",
    "same",
    "equal",
    "number",
    "times",
    "test",
    "slice",
    "tuple",
    "list",
    "dict",
)
"""Kinds of native templates, in the order of `Kind` in cpp/bindings/known_calls.cpp."""
NativeTemplate = tuple[int, int, Any, tuple[Any, ...]]
"""A native template: kind, slot or factor, value, and parts."""


@dataclass(frozen=True, slots=True)
class MatchContext:
    """The objects that the templates of a program refer to, in the trainer."""

    slots: Mapping[Term, int]
    constants: Mapping[ContentKey, TensorConstant]
    free: Set[int]
    """Slots of the results that depend on no input."""
    inputs: int
    marked: MarkedCode

    def value(self, key: Any, read: Callable[[int], Any]) -> Any:
        """Return the value of a key; `read` returns the value of a slot."""
        if isinstance(key, ContentKey):
            return self.constants[key].value
        return self.marked.owners[key.path] if isinstance(key, OwnerKey) else read(self.slots[key])

    def template(self, spec: Any) -> NativeTemplate:
        """Return the template of an argument in the form that `_native.KnownCalls` compares."""

        def made(kind: str, value: Any = None, number: int = 0, parts: Sequence[Any] = ()) -> NativeTemplate:
            return KINDS.index(kind), number, value, tuple([self.template(part) for part in parts])

        match spec:
            case InputKey() | PartKey():
                slot = self.slots[spec]
                if slot in self.free:
                    return made("free", slot)
                return made("input" if slot < self.inputs else "slot", number=slot)
            case TimesKey(factor):
                return made("times", number=factor)
            case ContentKey():
                return made("constant", self.constants[spec])
            case OwnerKey(path):
                return made("same", self.marked.owners[path])
            case PlainKey(kind, value) if issubclass(kind, np.generic):
                return made("test", lambda given: type(given) is kind and given.tobytes() == value)
            case PlainKey(kind):
                return made("number" if kind is float else "equal", spec.constant)
        assert isinstance(spec, NestKey)
        value = spec.keys if spec.kind is dict else torch.Size if spec.kind is tuple else None
        return made(spec.kind.__name__, value, parts=spec.items)


class KnownEntry:
    """A known call with its templates resolved, so that it can be matched and run."""

    def __init__(self, known: TorchCall, context: MatchContext) -> None:
        marked, slots = context.marked.functions, context.slots
        self.at = 0
        """Position among the calls that forward() makes."""
        self.known, self.context = known, context
        self.is_marked = known.name in marked
        self.function: Any = None
        if known.name:
            self.function = marked.get(known.name) or torch_functions.resolve(known.name)
        own = known.same_as is None
        self.slots = [slots[PartKey(known.number, part)] for part in range(len(known.parts))] if own else []
        self.first = self.slots[0] if self.slots else -1
        self.gives_arg = slots[known.same_as] if known.same_as is not None else -1
        self.reads = [slots[term] for term in known.terms]
        self.unsent = [slot for slot, part in zip(self.slots, known.parts, strict=own) if part.crosses < 0]
        """Slots of results that data workers do not send."""

    def native(self, read: Set[int]) -> tuple[Any, ...]:
        """Function, templates of arguments, results and their slots, for `_native.KnownCalls`.

        read: slots that known calls read.
        """
        template, kwargs, gives = self.context.template, self.known.kwargs, self.known.gives
        named = zip(kwargs.keys, kwargs.items, strict=True) if kwargs is not None else ()
        is_tuple = gives.kind is tuple and all(child.kind is None for child in gives.children)
        parts = [
            (slot, part.crosses, slot in read)
            for slot, part in zip(self.slots, self.known.parts, strict=bool(self.slots))
            if part.is_tensor and (part.crosses < 0 or part.device == "cpu")
        ]
        simple = len(parts) == len(self.known.parts) and (gives.kind is None or is_tuple) and not self.known.writes
        return (
            self.function,
            tuple([template(spec) for spec in self.known.args]),
            tuple([(name, template(spec)) for name, spec in named]),
            tuple(parts) if simple else (),
            is_tuple,
            self.is_marked,
        )

    def made(self, read: Callable[[int], Any], size: int) -> list[Any]:
        """Run the call on the values of its slots, and return its results."""
        return self.known.run(self.function, lambda key: self.context.value(key, read), size)


def difference(calls: KnownCalls, entry: KnownEntry, args: Any) -> str:
    what = f"{torch_functions.operation(entry.known.name)} of {entry.known.line or 'forward()'}"
    for place, (spec, given) in enumerate(zip(entry.known.args, args, strict=False)):
        if not calls.argument_matches(entry.at, place, given):
            if isinstance(spec, ContentKey):
                return f"{what} reads a tensor whose values have changed since forward() was split"
            if isinstance(spec, InputKey):
                return f"{what} reads an input that forward() has written to, or whose gradient it needs"
            if not any(keys_in(spec, InputKey, PartKey, ContentKey, OwnerKey, TimesKey)):
                constant = value_keys.filled(spec, lambda key: None, 0)
                return f"{what} is called with {_short(given)}, not {_short(constant)}"
    return f"{what} is called with other arguments than when forward() was split"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
