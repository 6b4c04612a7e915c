"""Match the torch calls of a forward() against the recorded calls that moved to data workers.

In: call templates (dataworker/split/program/value_keys.py). A forward makes dozens of moved calls for every batch, so
matching must be fast. This module therefore generates a Python matcher function for each call. The matcher compares
promises, numbers and constants. Used by: dataworker/split/program/call_replay.py.
"""

import abc
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from springtide.dataworker.split.program.value_keys import (
    ContentKey,
    InputKey,
    NestKey,
    OwnerKey,
    PartKey,
    PlainKey,
    Term,
    TimesKey,
    terms_in,
)
from springtide.dataworker.split.recorder import bit_compare, pytree, torch_functions
from springtide.dataworker.split.recorder.marked_calls import MarkedCode
from springtide.dataworker.split.recorder.pytree import TreeShape

SEQUENCES = (tuple, torch.Size)


class ReplayState(Protocol):
    """The running replay, as matchers see it."""

    values: list[Any]
    size: int

    def is_unwritten(self, number: int) -> bool:
        """Return True if the input is unchanged."""
        ...


class NoValue:
    """Placeholder for an empty slot."""


NOTHING = NoValue()


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A single value that a moved call returns."""

    kind: Any
    """The dtype of a tensor, or the Python type of any other value."""
    crosses: int = -1
    """Index among the values that data workers send; -1 if data workers do not send it."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCall:
    """A moved call that the trainer can skip."""

    number: int
    name: str
    args: tuple[Any, ...]
    kwargs: NestKey | None
    gives: TreeShape
    parts: tuple[KnownPart, ...]
    writes: bool = False
    returns_none: bool = False
    view: bool = False
    same_as: Term | None = None
    free: bool = False
    """True if the call depends on no input. The trainer then runs it itself, and recognises its result by its bits."""
    line: str = ""


class KnownEntry:
    """A known call that is ready to be matched and to be run."""

    def __init__(
        self,
        at: int,
        known: KnownCall,
        slots: Mapping[Term, int],
        constants: Mapping[ContentKey, bit_compare.TensorConstant],
        free: Set[int],
        inputs: int,
        marked: MarkedCode,
    ) -> None:
        """Compile the matcher. `marked` holds the user's functions and their modules in this process."""
        self.at, self.known = at, known
        self.is_marked = known.name in marked.functions
        self.function: Any = None
        if known.name:
            self.function = marked.functions.get(known.name) or torch_functions.resolve(known.name)
        named = dict(zip(known.kwargs.keys, known.kwargs.items, strict=True)) if known.kwargs is not None else {}
        compiled = _Compiled(slots, constants, free, inputs, marked)
        self.args = [compiled.part(one) for one in known.args]
        self.kwargs = {name: compiled.part(one) for name, one in named.items()}
        self.matches: Callable[[Any, Any, list[Any], ReplayState], bool] = _matcher(self.args, self.kwargs)
        own = known.same_as is None
        self.slots = [slots[PartKey(known.number, part)] for part in range(len(known.parts))] if own else []
        self.first = self.slots[0] if self.slots else -1
        self.gives_arg = slots[known.same_as] if known.same_as is not None else -1
        self.reads = [slots[one] for one in terms_in((known.args, known.kwargs or ()))]
        alone = len(known.parts) == 1 and known.parts[0].crosses < 0 and known.gives.kind is None
        self.plain = alone and own and not known.writes and not known.view
        """True if the call returns a single new tensor that data workers do not send."""

    @classmethod
    def none_left(cls, at: int) -> "KnownEntry":
        """Return a sentinel for the end of the list, which matches no function."""
        return cls(
            at,
            KnownCall(number=-1, name="", args=(), kwargs=None, gives=TreeShape(), parts=()),
            {},
            {},
            set(),
            0,
            MarkedCode(),
        )

    def made(self, read: Callable[[int], Any], size: int) -> list[Any]:
        """Run the call on the values of its slots, and return its results."""
        args = [one.fill(read, size) for one in self.args]
        kwargs = {name: one.fill(read, size) for name, one in self.kwargs.items()}
        if self.known.writes:
            args[0] = args[0].clone()
            self.function(*args, **kwargs)
            return [args[0]]
        result = self.function(*args, **kwargs)
        return [result] if isinstance(result, torch.Tensor | torch.Size) else pytree.flatten(result)[0]


class Argument(abc.ABC):
    """An argument of a known call."""

    source = ""
    """Python expression for the match. `x` is the argument, `v` the slots, `s` the state, and `w` this object."""

    @abc.abstractmethod
    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """Return the argument as it was recorded."""


class Slot(Argument):
    """A result of an earlier known call."""

    def __init__(self, slot: int) -> None:
        self.slot, self.source = slot, f"x is v[{slot}]"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        return read(self.slot)


class Input(Slot):
    """An input of the model."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.source = f"x is v[{slot}] and s.is_unwritten({slot})"


class Free(Slot):
    """A result of a call that depends on no input."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.source = f"type(x) is Tensor and s.free[{slot}].is_still(x)"


class ConstantValue(Argument):
    """A constant that is compared by type and equality: an integer, a string, a dtype."""

    def __init__(self, kind: type, value: Any) -> None:
        self.kind, self.value = kind, value
        exact = f"x == {value}" if kind is int else "x == w.value"
        self.source = "x is None" if value is None else f"type(x) is w.kind and {exact}"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        return self.value


class SeveralValues(ConstantValue):
    """A list or tuple of such constants."""

    def __init__(self, kind: type, items: Sequence[PlainKey]) -> None:
        super().__init__(kind, kind([one.value for one in items]))
        self.kinds = [one.kind for one in items]
        also = " or type(x) is Size" if kind is tuple else ""
        self.source = f"(type(x) is w.kind{also}) and x == w.value and list(map(type, x)) == w.kinds"


class Real(Argument):
    """A Python or NumPy floating-point number, compared by its bits."""

    def __init__(self, spec: PlainKey) -> None:
        self.value, self.source = spec.constant, "w.is_it(x)"

    def is_it(self, given: Any) -> bool:
        """Return True if the number has the same bits."""
        if type(given) is not type(self.value):
            return False
        if isinstance(given, np.generic):
            return bool(given.tobytes() == self.value.tobytes())
        return bool(given == self.value) and math.copysign(1.0, given) == math.copysign(1.0, self.value)

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        return self.value


class BatchSize(Argument):
    """A multiple of the batch size."""

    def __init__(self, factor: int) -> None:
        self.factor, self.source = factor, f"type(x) is int and x == {factor} * s.size"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """Return the number for this batch size."""
        return self.factor * size


class SameTensor(Argument):
    """A tensor that no known call made, compared by its bits."""

    def __init__(self, constant: bit_compare.TensorConstant) -> None:
        self.constant, self.source = constant, "type(x) in KINDS and w.constant.is_still(x)"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """Return the copy that data workers have."""
        return self.constant.value


class Itself(Argument):
    """A module of the model, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value, self.source = value, "x is w.value"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        return self.value


class Nested(Argument):
    """A container of arguments."""

    def __init__(self, kind: type, items: Sequence[Argument], keys: tuple[str, ...]) -> None:
        self.kind, self.items, self.keys = kind, list(items), keys
        self.source = "w.is_it(x, v, s)"
        self._each = [_matcher([one], {}) for one in items]

    def is_it(self, given: Any, values: list[Any], state: ReplayState) -> bool:
        """Return True if the container holds these arguments."""
        if self.kind is slice:
            given = (given.start, given.stop, given.step) if type(given) is slice else None
        elif self.kind is dict:
            given = tuple(given.values()) if type(given) is dict and tuple(given) == self.keys else None
        elif not (type(given) is self.kind or (self.kind is tuple and type(given) in SEQUENCES)):
            return False
        if given is None or len(given) != len(self.items):
            return False
        return all(one((each,), None, values, state) for one, each in zip(self._each, given, strict=True))

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """Return the container, with its arguments filled in."""
        items = [one.fill(read, size) for one in self.items]
        if self.kind is dict:
            return dict(zip(self.keys, items, strict=True))
        return slice(*items) if self.kind is slice else self.kind(items)


class _Compiled:
    """Converter from recorded argument specs to `Argument` objects."""

    def __init__(
        self,
        slots: Mapping[Term, int],
        constants: Mapping[ContentKey, bit_compare.TensorConstant],
        free: Set[int],
        inputs: int,
        marked: MarkedCode,
    ) -> None:
        self._slots, self._constants, self._free, self._inputs = slots, constants, free, inputs
        self._owners = marked.owners

    def part(self, spec: Any) -> Argument:
        """Return the `Argument` for a spec."""
        if isinstance(spec, InputKey | PartKey):
            slot = self._slots[spec]
            kind = Free if slot in self._free else Input if slot < self._inputs else Slot
            return kind(slot)
        if isinstance(spec, TimesKey):
            return BatchSize(spec.factor)
        if isinstance(spec, ContentKey):
            return SameTensor(self._constants[spec])
        if isinstance(spec, OwnerKey):
            return Itself(self._owners[spec.path])
        if isinstance(spec, PlainKey):
            return ConstantValue(spec.kind, spec.value) if _is_whole(spec) else Real(spec)
        assert isinstance(spec, NestKey)
        if spec.kind is slice and all(map(_is_whole, spec.items)):
            return ConstantValue(slice, slice(*[one.value for one in spec.items]))
        if spec.kind in (list, tuple) and spec.items and all(map(_is_whole, spec.items)):
            return SeveralValues(spec.kind, spec.items)
        return Nested(spec.kind, [self.part(one) for one in spec.items], spec.keys)


def _is_whole(spec: Any) -> bool:
    """Return True for a constant that is compared by type and equality."""
    return isinstance(spec, PlainKey) and spec.kind is not float and not issubclass(spec.kind, np.generic)


def _matcher(args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> Callable[[Any, Any, list[Any], Any], bool]:
    """Generate a function that returns True if the arguments of a call match."""
    scope: dict[str, Any] = {"KINDS": bit_compare.KINDS, "Tensor": torch.Tensor, "Size": torch.Size}
    lines = [f"if len(args) != {len(args)}: return False"]
    lines += [f"if len(kwargs or ()) != {len(kwargs)}: return False" if kwargs else "if kwargs: return False"]
    named = [(f"kwargs.get({name!r}, Tensor)", one) for name, one in kwargs.items()]
    for at, (given, one) in enumerate([*((f"args[{at}]", one) for at, one in enumerate(args)), *named]):
        scope[f"w{at}"] = one
        lines += [f"x, w = {given}, w{at}", f"if not ({one.source}): return False"]
    body = "\n    ".join([*lines, "return True"])
    exec(compile(f"def matches(args, kwargs, v, s):\n    {body}\n", "<springtide known call>", "exec"), scope)
    return scope["matches"]  # type: ignore[no-any-return]


def difference(state: ReplayState, entry: KnownEntry, args: Any, kwargs: Any) -> str:
    """Describe how a call differs from the known call."""
    what = f"{torch_functions.operation(entry.known.name)} of {entry.known.line or 'forward()'}"
    for one, given in zip(entry.args, args, strict=False):
        if not _matcher([one], {})((given,), None, state.values, state):
            if isinstance(one, ConstantValue | Real):
                return f"{what} is called with {_short(given)}, not {_short(one.value)}"
            if isinstance(one, SameTensor):
                return f"{what} reads a tensor that has other values than when forward() was split"
            if isinstance(one, Input):
                return f"{what} reads an input that forward() has written to, or asks a gradient of"
    return f"{what} is called with something else than when forward() was split"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
