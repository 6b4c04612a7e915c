"""Describe the arguments of torch calls as templates of inputs, earlier results and constants.

In: the arguments of a call, and the known tensors among them. Out: a hashable template that pickles. `filled` replaces
its keys by the values of another batch. Two forwards compute the same value if they make the same call with the same
template, in any process.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
    """Error for an argument that no template can describe: a user-defined object, or a tensor of unknown origin."""


@dataclass(frozen=True, slots=True)
class InputKey:
    """An input of the model, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class PartKey:
    """A single result of a recorded call."""

    call: int
    at: int


@dataclass(frozen=True, slots=True)
class OwnerKey:
    """A module of the model, by its path. It owns a marked method."""

    path: str


@dataclass(frozen=True, slots=True)
class ContentKey:
    """A tensor that no recorded call made, by a digest of its bits."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class NumberKey:
    """An integer argument, by its position among the integers of the call. Its value may follow the batch size."""

    place: int


@dataclass(frozen=True, slots=True)
class TimesKey:
    """A multiple of the batch size."""

    factor: int


@dataclass(frozen=True, slots=True)
class PlainKey:
    """A constant. Floating-point constants are compared by their bits."""

    kind: type
    value: Any

    @property
    def constant(self) -> Any:
        if self.kind is float:
            return float.fromhex(self.value)
        return np.frombuffer(self.value, self.kind)[0] if issubclass(self.kind, np.generic) else self.value


@dataclass(frozen=True, slots=True)
class NestKey:
    """A container of specs: a tuple, list, slice, or a dict with its keys."""

    kind: type
    items: tuple[Any, ...]
    keys: tuple[str, ...] = ()


Key = TypeVar("Key")
Term = InputKey | PartKey
Spec = InputKey | PartKey | OwnerKey | ContentKey | NumberKey | TimesKey | PlainKey | NestKey


class Writer:
    """Builder of the template for a single call."""

    def __init__(self, term: Callable[[torch.Tensor], Spec | None], other: Callable[[Any], Spec | None]) -> None:
        """`term` names a tensor, and `other` a module or a non-tensor input. Both return None if unknown."""
        self._term, self._other = term, other
        self.numbers: list[int] = []
        """Integers among the arguments, in order."""

    def write(self, value: Any) -> Spec:
        """Return the spec of a value. Raise `UnknownKey` if the value has none."""
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


def keys_in(spec: Any, *kinds: type[Key]) -> Iterator[Key]:
    """Yield the keys of these kinds in a template."""
    if isinstance(spec, kinds):
        yield spec
    elif isinstance(spec, NestKey | tuple):
        for one in spec.items if isinstance(spec, NestKey) else spec:
            yield from keys_in(one, *kinds)


def terms_in(spec: Any) -> Iterator[Term]:
    return keys_in(spec, InputKey, PartKey)


def replaced(spec: Any, change: Callable[[Any], Any]) -> Any:
    """Return the template with some of its leaves changed."""
    if isinstance(spec, NestKey):
        return NestKey(spec.kind, tuple([replaced(one, change) for one in spec.items]), spec.keys)
    if isinstance(spec, tuple):
        return tuple([replaced(one, change) for one in spec])
    return change(spec)


def filled(spec: Any, values: Mapping[Any, Any], size: int) -> Any:
    """Fill a template. `values` has inputs, results and constant tensors; `size` is the batch size."""
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
    """Replace each integer of a template by a constant or a multiple of the batch size; None if it is neither.

    `numbers` and `sizes` have the integers and the batch size of each recorded batch. A constant may equal the batch
    size by chance. The template is then wrong for other batch sizes, but a call with another number does not match it.
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
    """Return True if a constant is unlikely to equal this multiple of the batch size by chance."""
    return size > 1 and (factor == 1 or size >= 16)
