"""What a tensor is, told by how it was made: the second rung knows the values that it answers by their terms.

In: calls of torch's functions, as a forward makes them. Out: a key for each, of the function's name and of what its
arguments are: inputs of the model, buffers, results of earlier calls, constants. Two forwards, in whichever process,
make the same value where they make it by the same key. Used by: prep/hearing.py and prep/answering.py.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

PLAIN = frozenset(
    {
        int,
        float,
        bool,
        complex,
        str,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
Key = tuple[str, Hashable, Hashable]
"""A function's name, its arguments, its named arguments or None."""


class Unknown(Exception):
    """An argument that has no term: a parameter, something of the user's own."""


class Leaf(NamedTuple):
    """An input of the model."""

    number: int


class Held(NamedTuple):
    """A buffer that forward only reads."""

    path: str


class Part(NamedTuple):
    """One of the values that a call gave."""

    call: int
    at: int


Term = Leaf | Held | Part
TERMS = frozenset({Leaf, Held, Part})


class Terms:
    """The terms of all tensors that are known in one forward."""

    def __init__(self, leaves: Sequence[Any], held: Mapping[str, torch.Tensor]) -> None:
        self._known: dict[int, tuple[Term, torch.Tensor]] = {}  # with the tensor: no other gets its id meanwhile
        self._values: dict[Term, torch.Tensor] = {}
        for path, value in held.items():
            self.name(value, Held(path))
        for number, value in enumerate(leaves):
            if isinstance(value, torch.Tensor):
                self.name(value, Leaf(number))

    def name(self, value: torch.Tensor, term: Term) -> None:
        """From now on, this is what it is."""
        self._known[id(value)] = term, value
        self._values[term] = value

    def of(self, value: torch.Tensor) -> Term | None:
        """What a tensor is; None: unknown."""
        known = self._known.get(id(value))
        return None if known is None else known[0]

    def value(self, term: Term) -> torch.Tensor:
        """The tensor that is this; of several, the last."""
        return self._values[term]

    def told_as(self, wanted: Any, named: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
        """Whether a call's arguments are those of a key."""
        if len(args) != len(wanted) - 1 or (bool(kwargs) is not (named is not None)):
            return False
        for at, arg in enumerate(args, 1):
            one = wanted[at]
            if type(one) in TERMS:
                if self._values.get(one) is not arg:
                    return False
            elif type(arg) in PLAIN:
                if one[0] is not type(arg) or one[1] != arg:
                    return False
            elif self._told_or_none(arg) != one:
                return False
        return not kwargs or self._told_or_none(kwargs) == named

    def _told_or_none(self, value: Any) -> Hashable:
        try:
            return self._told(value)
        except Unknown:
            return None

    def lying_in(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
        """What lies in the memory that such a call writes to: ids, for `forget`."""
        written = [one for one in (*args[:1], kwargs.get("out")) if isinstance(one, torch.Tensor)]
        memory = {_memory(one) for one in written} - {0}
        own = {id(one) for one in written}
        return [at for at, (_, one) in self._known.items() if at in own or _memory(one) in memory]

    def forget(self, written: Sequence[int]) -> None:
        """These are not what they were."""
        for at in written:
            term, value = self._known.pop(at)
            if self._values.get(term) is value:
                del self._values[term]

    def key(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
        """What a call is; None where an argument is unknown."""
        try:
            return name_of(function), self._told(args), self._told(kwargs) if kwargs else None
        except Unknown:
            return None

    def _told(self, value: Any) -> Hashable:
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        kind = type(value)
        if kind in PLAIN:
            return kind, value
        if kind is tuple or kind is list:
            return (kind, *[self._told(one) for one in value])
        if kind is dict:
            return (dict, *[(name, self._told(one)) for name, one in value.items()])
        if kind is slice:
            return slice, self._told(value.start), self._told(value.stop), self._told(value.step)
        if kind is torch.Size:
            return (tuple, *[(int, one) for one in value])
        raise Unknown


def parts_in(key: Any) -> list[Term]:
    """Terms that a key is made of."""
    if isinstance(key, Leaf | Held | Part):
        return [key]
    return [term for one in key for term in parts_in(one)] if isinstance(key, tuple) else []


def writes(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of torch's writes to what it is given, by its name."""
    name = name_of(function).rpartition(".")[2]
    if name.startswith("__"):
        return name in ("__setitem__", "__set__", "__delete__") or (name.startswith("__i") and name not in READING)
    return name.endswith("_") or "out" in kwargs


def _memory(value: torch.Tensor) -> int:
    """Where a tensor lies, or what was promised; 0: nowhere yet."""
    if hasattr(value, "springtide_made"):
        return 0 if value.springtide_made is None else _memory(value.springtide_made)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return value.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


READING = ("__index__", "__int__", "__invert__", "__iter__")
_names: dict[Any, str] = {}


def name_of(function: Any) -> str:
    """By which another process knows it too."""
    found = _names.get(function)
    if found is None:
        owner = getattr(function, "__self__", None)
        if type(function).__name__ == "method-wrapper" and owner is not None:
            found = f"{owner.__objclass__.__qualname__}.{owner.__name__}.{function.__name__}"
        else:
            told = (getattr(function, name, "") for name in ("__module__", "__qualname__", "__name__"))
            found = ".".join(str(one or "") for one in told)
        _names[function] = found
    return found
