"""Describes torch calls: their results, and templates of their arguments (inputs, earlier results, constants).

In: the arguments of a call, and the known tensors among them. Out: a hashable template that pickles. `filled` replaces
the keys of the template by the values of another batch. Two forwards compute the same value if they make the same call
with the same template, in any process.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.pytree import TreeShape

PLAIN = frozenset(
    {bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
TYPES = (int, float, bool, complex)


class UnknownKey(Exception):
    """Error for an argument that no template can describe: an object of a user's class, or a tensor of unknown
    origin."""


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
    """A module of the model that owns a marked method, by its path."""

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
    """An integer argument, by its position among the integers of the call. The value of the argument may follow the
    batch size.
    """

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


@dataclass(frozen=True, slots=True)
class CallPart:
    """A single result of a call."""

    kind: Any
    """The dtype of a tensor, or the Python type of any other value."""
    bytes: int = 8
    elements: int = 0
    device: str = "cpu"
    contiguous: bool = True
    value: Any = None
    """The result itself. In a recording, a tensor is copied if the recorder keeps values."""
    crosses: int = -1
    """Index of this result among the values that data workers send; -1 if data workers do not send this result."""

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.kind, torch.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """A torch call of forward() that data workers may make. Calls that move are pickled with their program."""

    number: int
    name: str
    args: tuple[Spec, ...]
    kwargs: NestKey | None
    numbers: tuple[int, ...] = ()
    """The integer arguments of the call in one recording, for `decided`."""
    gives: TreeShape
    parts: tuple[CallPart, ...]
    writes: bool = False
    """True if the call writes to its first argument, which is then also the result of the call."""
    returns_none: bool = False
    view: bool = False
    """True if the result shares memory with an argument."""
    same_as: Term | None = None
    """The argument that the call returned unchanged; None if the call returned a new value."""
    free: bool = False
    """True if the call depends on no input. The trainer then runs the call itself, and recognises the result by its
    bits.
    """
    rounds: bool = False
    line: str = ""
    text: str = ""

    def keys(self, *kinds: type[Key]) -> Iterator[Key]:
        return keys_in((self.args, self.kwargs or ()), *kinds)

    @property
    def terms(self) -> Iterator[Term]:
        return self.keys(InputKey, PartKey)

    def run(self, function: Callable[..., Any], read: Callable[[Any], Any], size: int) -> list[Any]:
        """Run the call and return its results. A call that writes gets a copy of its first argument."""
        args = [filled(arg, read, size) for arg in self.args]
        kwargs = filled(self.kwargs, read, size) if self.kwargs is not None else {}
        if self.writes:
            args[0] = args[0].clone()
            function(*args, **kwargs)
            return [args[0]]
        return results_of(function(*args, **kwargs))[0]


def results_of(result: Any) -> tuple[list[Any], TreeShape]:
    """Return the results of a call as a list, and the structure in which the call returned them."""
    return ([result], TreeShape()) if isinstance(result, torch.Tensor | torch.Size) else pytree.flatten(result)


class Writer:
    """Builds the template of one call."""

    def __init__(self, term: Callable[[torch.Tensor], Spec | None], other: Callable[[Any], Spec | None]) -> None:
        """`term` names a tensor, and `other` a module or a non-tensor input. Both functions return None for an unknown
        object."""
        self._term, self._other = term, other
        self.numbers: list[int] = []
        """Integers among the arguments, in order."""

    def write(self, value: Any) -> Spec:
        """Return the spec of a value. Raise `UnknownKey` if the value has no key."""
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
            return NestKey(tuple if kind is torch.Size else kind, tuple([self.write(part) for part in value]))
        if kind is dict:
            return NestKey(dict, tuple([self.write(part) for part in value.values()]), tuple(value))
        if kind is slice:
            return NestKey(slice, (self.write(value.start), self.write(value.stop), self.write(value.step)))
        raise UnknownKey


def keys_in(spec: Any, *kinds: type[Key]) -> Iterator[Key]:
    if isinstance(spec, kinds):
        yield spec
    elif isinstance(spec, NestKey | tuple):
        for item in spec.items if isinstance(spec, NestKey) else spec:
            yield from keys_in(item, *kinds)


def replaced(spec: Any, change: Callable[[Any], Any]) -> Any:
    """Return the template with some of its leaves changed."""
    if isinstance(spec, NestKey):
        return NestKey(spec.kind, tuple([replaced(item, change) for item in spec.items]), spec.keys)
    if isinstance(spec, tuple):
        return tuple([replaced(part, change) for part in spec])
    return change(spec)


def filled(spec: Any, read: Callable[[Any], Any], size: int) -> Any:
    """Fill a template. `read` returns the value of an input, result, constant tensor or module."""
    kind = type(spec)
    if kind is PlainKey:
        return spec.constant
    if kind is TimesKey:
        return size * spec.factor
    if kind is NestKey:
        items = [filled(item, read, size) for item in spec.items]
        if spec.kind is dict:
            return dict(zip(spec.keys, items, strict=True))
        return slice(*items) if spec.kind is slice else spec.kind(items)
    return read(spec)


def decided(spec: Any, numbers: Sequence[Sequence[int]], sizes: Sequence[int]) -> Any | None:
    """Replace each integer of a template by a constant or a multiple of the batch size; return None if that is
    impossible.

    `numbers` and `sizes` have the integers and the batch size of each recorded batch. If a constant equals the batch
    size by chance, the function takes the constant for the batch size. The template is then wrong for other batch
    sizes, but the numbers of later calls then do not match the template.
    """
    found: list[Any] = []
    for seen in zip(*numbers, strict=True):
        factor = seen[0] // sizes[0] if sizes[0] else 0
        # it is unlikely that a constant equals this multiple of the batch size by chance
        likely = sizes[0] > 1 and (factor == 1 or sizes[0] >= 16)
        follows = factor > 0 and all(number == factor * size for number, size in zip(seen, sizes, strict=True))
        if len(set(seen)) == 1 and not (follows and len(set(sizes)) == 1 and likely):
            found.append(PlainKey(int, seen[0]))
        elif follows:
            found.append(TimesKey(factor))
        else:
            return None
    return replaced(spec, lambda leaf: found[leaf.place] if isinstance(leaf, NumberKey) else leaf)
