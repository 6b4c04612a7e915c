"""Arguments of torch calls written down: which input, which earlier result, which constant each of them is.

In: the arguments of one call, and what is known of the tensors among them. Out: a template, which is hashable, pickles,
and is filled with the values of another batch. Two forwards, in whichever process, make the same value where they make
the same call with the same template. Used by: dataworker/split/recorder/call_recorder.py,
dataworker/split/program/moved_program.py, dataworker/split/program/call_replay.py.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PLAIN = frozenset(
    {
        bool,
        complex,
        str,
        bytes,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
TYPES = (int, float, bool, complex)


class UnknownKey(Exception):
    """An argument that cannot be written down: something of the user's own, or a tensor of unknown making."""


@dataclass(frozen=True, slots=True)
class InputKey:
    """An input of the model, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class PartKey:
    """One of the values that a recorded call gave."""

    call: int
    at: int


@dataclass(frozen=True, slots=True)
class OwnerKey:
    """A module of the model, by its path: a marked function is a method of it."""

    path: str


@dataclass(frozen=True, slots=True)
class ContentKey:
    """A tensor that no recorded call made, by its bits."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class NumberKey:
    """A whole number, by its place among those of the call: what it is may follow the size of the batch."""

    place: int


@dataclass(frozen=True, slots=True)
class TimesKey:
    """The size of the batch, so many times."""

    factor: int


@dataclass(frozen=True, slots=True)
class PlainKey:
    """A constant. Floating-point numbers are told apart by their bits."""

    kind: type
    value: Any

    @property
    def constant(self) -> Any:
        """The constant itself."""
        if self.kind is float:
            return float.fromhex(self.value)
        return np.frombuffer(self.value, self.kind)[0] if issubclass(self.kind, np.generic) else self.value


@dataclass(frozen=True, slots=True)
class NestKey:
    """A container of specs: a tuple, list, slice, or a dict with its keys."""

    kind: type
    items: tuple[Any, ...]
    keys: tuple[str, ...] = ()


Term = InputKey | PartKey
Spec = InputKey | PartKey | OwnerKey | ContentKey | NumberKey | TimesKey | PlainKey | NestKey


class Writer:
    """Writes down the arguments of one call."""

    def __init__(self, term: Callable[[torch.Tensor], Spec | None], other: Callable[[Any], Spec | None]) -> None:
        """`term` names a tensor, `other` an input that is none, or a module; None: unknown."""
        self._term, self._other = term, other
        self.numbers: list[int] = []
        """Whole numbers among the arguments, in order."""

    def write(self, value: Any) -> Spec:
        """A spec for a value; `Unknown` where there is none."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            term = self._term(value)
            if term is None:
                raise UnknownKey
            return term
        if kind is int:
            self.numbers.append(value)
            return NumberKey(len(self.numbers) - 1)
        if kind in PLAIN or (kind is type and value in TYPES):
            return PlainKey(kind, value)
        if kind is float and not math.isnan(value):
            return PlainKey(kind, value.hex())
        if isinstance(value, np.generic):
            return PlainKey(kind, value.tobytes())
        if (other := self._other(value)) is not None:
            return other
        if kind is tuple or kind is list or kind is torch.Size:
            return NestKey(tuple if kind is torch.Size else kind, tuple([self.write(one) for one in value]))
        if kind is dict:
            return NestKey(dict, tuple([self.write(one) for one in value.values()]), tuple(value))
        if kind is slice:
            return NestKey(slice, (self.write(value.start), self.write(value.stop), self.write(value.step)))
        raise UnknownKey


def terms_in(spec: Any) -> Iterator[Term]:
    """Inputs and results that a template names."""
    if isinstance(spec, InputKey | PartKey):
        yield spec
    elif isinstance(spec, NestKey):
        for one in spec.items:
            yield from terms_in(one)
    elif isinstance(spec, tuple):
        for one in spec:
            yield from terms_in(one)


def owners_in(spec: Any) -> Iterator[OwnerKey]:
    """Modules that a template names."""
    if isinstance(spec, OwnerKey):
        yield spec
    elif isinstance(spec, NestKey | tuple):
        for one in spec.items if isinstance(spec, NestKey) else spec:
            yield from owners_in(one)


def contents_in(spec: Any) -> Iterator[ContentKey]:
    """Constant tensors that a template names."""
    if isinstance(spec, ContentKey):
        yield spec
    elif isinstance(spec, NestKey | tuple):
        for one in spec.items if isinstance(spec, NestKey) else spec:
            yield from contents_in(one)


def replaced(spec: Any, change: Callable[[Any], Any]) -> Any:
    """The same template with some of its leaves changed."""
    if isinstance(spec, NestKey):
        return NestKey(spec.kind, tuple([replaced(one, change) for one in spec.items]), spec.keys)
    if isinstance(spec, tuple):
        return tuple([replaced(one, change) for one in spec])
    return change(spec)


def filled(spec: Any, values: Mapping[Any, Any], size: int) -> Any:
    """What a template means: `values` has inputs, results and constant tensors; `size` is that of the batch."""
    kind = type(spec)
    if kind is PlainKey:
        return spec.constant
    if kind is TimesKey:
        return size * spec.factor
    if kind is NestKey:
        items = [filled(one, values, size) for one in spec.items]
        if spec.kind is dict:
            return dict(zip(spec.keys, items, strict=True))
        return slice(*items) if spec.kind is slice else spec.kind(items)
    return values[spec]


def decided(spec: Any, numbers: Sequence[Sequence[int]], sizes: Sequence[int]) -> Any | None:
    """A template whose numbers are constants or sizes: those of each batch, whose size is given. None: neither.

    A number that is the batch size wherever it was seen may be a constant by chance. Then it is wrong for a batch of
    another size only, and a call with another number is not taken for this one.
    """
    found: list[Any] = []
    for each in zip(*numbers, strict=True):
        factor = each[0] // sizes[0] if sizes[0] else 0
        follows = factor > 0 and all(one == factor * size for one, size in zip(each, sizes, strict=True))
        if len(set(each)) == 1 and not (follows and len(set(sizes)) == 1 and _is_likely(factor, sizes[0])):
            found.append(PlainKey(int, each[0]))
        elif follows:
            found.append(TimesKey(factor))
        else:
            return None
    return replaced(spec, lambda one: found[one.place] if isinstance(one, NumberKey) else one)


def _is_likely(factor: int, size: int) -> bool:
    """Whether a constant would hardly be this multiple of the batch size by chance."""
    return size > 1 and (factor == 1 or size >= 16)
