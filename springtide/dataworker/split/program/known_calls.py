"""Match the torch calls of a forward() against the recorded calls that moved to data workers.

In: call templates (value_keys.py). A forward makes dozens of moved calls for every batch, so matching must be fast.
This module therefore generates a Python function for each call, which compares promises, numbers and constants. Used
by: call_replay.py.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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
from springtide.dataworker.split.recorder import bit_compare, torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode

NOTHING = object()
"""Placeholder for an empty slot."""
Matcher = Callable[[Any, Any, list[Any], Any], bool]
"""Returns True if a call matches. Takes its arguments, its keyword arguments, the slots and the `ForwardReplay`."""


@dataclass(frozen=True, slots=True)
class MatchContext:
    """The objects that the templates of a program refer to, in the trainer."""

    slots: Mapping[Term, int]
    constants: Mapping[ContentKey, bit_compare.TensorConstant]
    free: Set[int]
    """Slots of results that depend on no input."""
    inputs: int
    marked: MarkedCode

    def value(self, key: Any, read: Callable[[int], Any]) -> Any:
        """Return the value of a key; `read` returns the value of a slot."""
        if isinstance(key, ContentKey):
            return self.constants[key].value
        return self.marked.owners[key.path] if isinstance(key, OwnerKey) else read(self.slots[key])

    def matcher(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Matcher:
        """Generate the matcher for these templates."""
        scope: dict[str, Any] = {"KINDS": bit_compare.KINDS, "TUPLES": (tuple, torch.Size), "Tensor": torch.Tensor}
        lines = [f"if len(args) != {len(args)}: return False"]
        lines += [f"if len(kwargs or ()) != {len(kwargs)}: return False" if kwargs else "if kwargs: return False"]
        given = [(f"args[{at}]", spec) for at, spec in enumerate(args)]
        given += [(f"kwargs.get({name!r}, Tensor)", spec) for name, spec in kwargs.items()]
        for argument, spec in given:
            lines += [f"x = {argument}", f"if not ({self._condition(spec, 'x', scope)}): return False"]
        body = "\n    ".join([*lines, "return True"])
        exec(compile(f"def matches(args, kwargs, v, s):\n    {body}\n", "<springtide known call>", "exec"), scope)
        return scope["matches"]  # type: ignore[no-any-return]

    def _condition(self, spec: Any, x: str, scope: dict[str, Any]) -> str:
        """Return a Python expression that is true if the value of the expression `x` matches the template."""

        def bound(value: Any) -> str:
            name = f"w{len(scope)}"
            scope[name] = value
            return name

        match spec:
            case InputKey() | PartKey():
                slot = self.slots[spec]
                if slot in self.free:
                    return f"type({x}) is Tensor and s.free[{slot}].is_still({x})"
                return f"{x} is v[{slot}]" + (f" and s.is_unwritten({slot})" if slot < self.inputs else "")
            case TimesKey(factor):
                return f"type({x}) is int and {x} == {factor} * s.size"
            case ContentKey():
                return f"type({x}) in KINDS and {bound(self.constants[spec])}.is_still({x})"
            case OwnerKey(path):
                return f"{x} is {bound(self.marked.owners[path])}"
            case PlainKey(kind, value):
                if value is None:
                    return f"{x} is None"
                shown = f"{x}.hex()" if kind is float else f"{x}.tobytes()" if issubclass(kind, np.generic) else x
                return f"type({x}) is {bound(kind)} and {shown} == {value if kind is int else bound(value)}"
        assert isinstance(spec, NestKey)
        if spec.kind is slice:
            begin, parts = f"type({x}) is slice", [f"{x}.start", f"{x}.stop", f"{x}.step"]
        elif spec.kind is dict:
            begin = f"type({x}) is dict and tuple({x}) == {bound(spec.keys)}"
            parts = [f"{x}[{key!r}]" for key in spec.keys]
        else:
            kinds = "in TUPLES" if spec.kind is tuple else f"is {spec.kind.__name__}"
            begin = f"type({x}) {kinds} and len({x}) == {len(spec.items)}"
            parts = [f"{x}[{at}]" for at in range(len(spec.items))]
        conditions = [self._condition(item, part, scope) for item, part in zip(spec.items, parts, strict=True)]
        return " and ".join([begin, *conditions])


class KnownEntry:
    """A known call that is ready to be matched and to be run."""

    def __init__(self, known: TorchCall, context: MatchContext) -> None:
        marked, slots = context.marked.functions, context.slots
        self.at = 0
        """Position among the calls that forward() makes."""
        self.known, self.context = known, context
        self.is_marked = known.name in marked
        self.function: Any = None
        if known.name:
            self.function = marked.get(known.name) or torch_functions.resolve(known.name)
        named = dict(zip(known.kwargs.keys, known.kwargs.items, strict=True)) if known.kwargs is not None else {}
        self.matches = context.matcher(known.args, named)
        own = known.same_as is None
        self.slots = [slots[PartKey(known.number, part)] for part in range(len(known.parts))] if own else []
        self.first = self.slots[0] if self.slots else -1
        self.gives_arg = slots[known.same_as] if known.same_as is not None else -1
        self.reads = [slots[term] for term in known.terms]
        alone = len(known.parts) == 1 and known.parts[0].crosses < 0 and known.gives.kind is None
        self.plain = alone and own and not known.writes
        """True if the call returns a single tensor that no other call returned and that data workers do not send."""

    def made(self, read: Callable[[int], Any], size: int) -> list[Any]:
        """Run the call on the values of its slots, and return its results."""
        return self.known.run(self.function, lambda key: self.context.value(key, read), size)


def difference(replay: Any, entry: KnownEntry, args: Any) -> str:
    what = f"{torch_functions.operation(entry.known.name)} of {entry.known.line or 'forward()'}"
    for spec, given in zip(entry.known.args, args, strict=False):
        if not entry.context.matcher([spec], {})((given,), None, replay.values, replay):
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
