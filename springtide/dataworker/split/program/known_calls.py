"""Moved torch calls as the trainer knows them again: each has a function of its own that compares arguments.

In: templates (dataworker/split/program/value_keys.py). A forward makes some dozens of moved calls with every batch, so
what is compared is written out as Python source for each call: which promise, which number, which constant. Used by:
dataworker/split/program/call_replay.py.
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
    """A forward that is being answered."""

    values: list[Any]
    size: int

    def is_unwritten(self, number: int) -> bool:
        """Whether an input is what it was."""
        ...


class NoValue:
    """In the place of a value that is not there."""


NOTHING = NoValue()


@dataclass(frozen=True, slots=True)
class KnownPart:
    """One value that a moved call gives."""

    kind: Any
    """Of a tensor its dtype; else the type of the value."""
    crosses: int = -1
    """Its place among what crosses; -1: it does not."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCall:
    """A call that need not be made in the trainer."""

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
    """It depends on no input: the trainer makes it itself, and its result is known by its bits."""
    line: str = ""


class KnownEntry:
    """A known call, ready to be compared with those that forward makes, and to be made."""

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
        """`marked`: the user's functions and the modules that they are methods of, those of this process."""
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
        """Whether it gives one new tensor that does not cross."""

    @classmethod
    def none_left(cls, at: int) -> "KnownEntry":
        """After the last call: no function is this one."""
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
        """What the call gives, of what is in slots."""
        args = [one.fill(read, size) for one in self.args]
        kwargs = {name: one.fill(read, size) for name, one in self.kwargs.items()}
        if self.known.writes:
            args[0] = args[0].clone()
            self.function(*args, **kwargs)
            return [args[0]]
        result = self.function(*args, **kwargs)
        return [result] if isinstance(result, torch.Tensor | torch.Size) else pytree.flatten(result)[0]


class Argument(abc.ABC):
    """One argument of a known call."""

    source = ""
    """Python over `x`, the argument given, `v`, the slots, `s`, the state, and `w`, this object."""

    @abc.abstractmethod
    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The argument as it was recorded."""


class Slot(Argument):
    """A result of an earlier known call."""

    def __init__(self, slot: int) -> None:
        self.slot, self.source = slot, f"x is v[{slot}]"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """What is in the slot."""
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
    """A constant that is equal to itself alone: a whole number, a string, a dtype."""

    def __init__(self, kind: type, value: Any) -> None:
        self.kind, self.value = kind, value
        exact = f"x == {value}" if kind is int else "x == w.value"
        self.source = "x is None" if value is None else f"type(x) is w.kind and {exact}"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The constant."""
        return self.value


class SeveralValues(ConstantValue):
    """A list or tuple of such constants."""

    def __init__(self, kind: type, items: Sequence[PlainKey]) -> None:
        super().__init__(kind, kind([one.value for one in items]))
        self.kinds = [one.kind for one in items]
        also = " or type(x) is Size" if kind is tuple else ""
        self.source = f"(type(x) is w.kind{also}) and x == w.value and list(map(type, x)) == w.kinds"


class Real(Argument):
    """A floating-point number, or one of NumPy's: by its bits."""

    def __init__(self, spec: PlainKey) -> None:
        self.value, self.source = spec.constant, "w.is_it(x)"

    def is_it(self, given: Any) -> bool:
        """Whether a number has the same bits."""
        if type(given) is not type(self.value):
            return False
        if isinstance(given, np.generic):
            return bool(given.tobytes() == self.value.tobytes())
        return bool(given == self.value) and math.copysign(1.0, given) == math.copysign(1.0, self.value)

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The number."""
        return self.value


class BatchSize(Argument):
    """The size of the batch, so many times."""

    def __init__(self, factor: int) -> None:
        self.factor, self.source = factor, f"type(x) is int and x == {factor} * s.size"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The number, for a batch of this size."""
        return self.factor * size


class SameTensor(Argument):
    """A tensor that no known call made, by its bits."""

    def __init__(self, constant: bit_compare.TensorConstant) -> None:
        self.constant, self.source = constant, "type(x) in KINDS and w.constant.is_still(x)"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The copy that data workers have."""
        return self.constant.value


class Itself(Argument):
    """A module of the model."""

    def __init__(self, value: Any) -> None:
        self.value, self.source = value, "x is w.value"

    def fill(self, read: Callable[[int], Any], size: int) -> Any:
        """The module."""
        return self.value


class Nested(Argument):
    """A container of arguments."""

    def __init__(self, kind: type, items: Sequence[Argument], keys: tuple[str, ...]) -> None:
        self.kind, self.items, self.keys = kind, list(items), keys
        self.source = "w.is_it(x, v, s)"
        self._each = [_matcher([one], {}) for one in items]

    def is_it(self, given: Any, values: list[Any], state: ReplayState) -> bool:
        """Whether a container holds these."""
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
        """The container of what its arguments are."""
        items = [one.fill(read, size) for one in self.items]
        if self.kind is dict:
            return dict(zip(self.keys, items, strict=True))
        return slice(*items) if self.kind is slice else self.kind(items)


class _Compiled:
    """Makes arguments of specs."""

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
        """The argument that a spec is."""
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
    """Whether a constant is known by its type and by being equal."""
    return isinstance(spec, PlainKey) and spec.kind is not float and not issubclass(spec.kind, np.generic)


def _matcher(args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> Callable[[Any, Any, list[Any], Any], bool]:
    """A function that says whether the arguments of a call are these."""
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
    """In what a call is not the known one."""
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
