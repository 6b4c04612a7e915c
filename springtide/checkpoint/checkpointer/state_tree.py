"""Split a state dict into plain data and a list of tensors, and join it again. Nothing is ever unpickled.

In: the `state_dict()` of a module, an optimizer, a scheduler or a user's object. Out: `SplitState`, a skeleton that
msgspec can encode and the tensors it refers to, each once. Next: checkpoint/checkpointer/state_image.py lays them out.
"""

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from springtide import errors

Skeleton = Any
"""None, bool, int, float, str or bytes as they are; everything else as [tag, ...]."""

LARGEST_INT = 2**63 - 1
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_Places = dict[int, list[int]]
"""Positions of tensors that are already in the list, by the address of their first element."""


@dataclass(frozen=True, slots=True)
class SplitState:
    """A split state. Tensors that view the same memory in the same way are stored once."""

    skeleton: Skeleton
    tensors: tuple[torch.Tensor, ...]


def split_state(state: Any) -> SplitState:
    """Split a state into skeleton and tensors. BadInput names the place of any unsupported value."""
    tensors: list[torch.Tensor] = []
    places: _Places = {}
    try:
        skeleton = _skeleton(state, "state", tensors, places)
    except RecursionError:
        raise errors.BadInput("state: a part of it contains itself, or it is nested too deeply to be saved") from None
    return SplitState(skeleton, tuple(tensors))


def join_state(skeleton: Skeleton, tensors: Sequence[torch.Tensor]) -> Any:
    """Rebuild the state from its skeleton and the tensors in their original order."""
    if not isinstance(skeleton, list):
        return skeleton
    tag, *rest = skeleton
    return _MAKERS[tag](rest, tensors)


def _skeleton(value: Any, at: str, tensors: list[torch.Tensor], places: _Places) -> Skeleton:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        return value if -LARGEST_INT <= value <= LARGEST_INT else ["int", str(value)]
    if isinstance(value, torch.Tensor):
        return ["tensor", _place(value, at, tensors, places)]
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.dtype.kind in "USVmM":
            raise _unfit(at, f"a NumPy array of {value.dtype}")
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8).copy()
        place = _place(torch.from_numpy(raw), at, tensors, places)
        return [tag, place, value.dtype.str, list(value.shape)]
    if isinstance(value, torch.Size):
        return ["size", *value]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, dict):
        tag = "ordered" if kind is collections.OrderedDict else "counter" if kind is collections.Counter else "dict"
        return [tag, *_pairs(value, at, tensors, places)]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, *(_skeleton(item, f"{at}[{i}]", tensors, places) for i, item in enumerate(value))]
    raise _unfit(at, f"{kind.__module__}.{kind.__qualname__}")


def _pairs(value: dict[Any, Any], at: str, tensors: list[torch.Tensor], places: _Places) -> Any:
    for key, item in value.items():
        inner = f"{at}[{key!r}]"
        yield [_skeleton(key, f"key {inner}", tensors, places), _skeleton(item, inner, tensors, places)]


def _place(tensor: torch.Tensor, at: str, tensors: list[torch.Tensor], places: _Places) -> int:
    """Return the index of a tensor in the list. Only cheap checks are made: the caller waits, and there may be
    thousands.
    """
    if type(tensor) not in PLAIN:
        raise _unfit(at, f"a {type(tensor).__name__}", "Take its local tensor first.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _unfit(at, f"a {tensor.layout} tensor on {tensor.device}", "Only dense tensors with data can be saved.")
    address = tensor.data_ptr()
    there = places.get(address)
    if there is None:
        there = places[address] = []
    elif tensor.numel():
        for place in there:
            if _shows_the_same(tensors[place], tensor):
                return place
    there.append(len(tensors))
    tensors.append(tensor.detach() if tensor.requires_grad else tensor)
    return there[-1]


def _shows_the_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors at the same address have the same elements."""
    alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return alike and one.device == other.device and one.is_neg() == other.is_neg() and one.is_conj() == other.is_conj()


def _unfit(
    at: str, got: str, what_to_do: str = "Save its state_dict(), or the numbers it is made of."
) -> errors.BadInput:
    wanted = "tensors, arrays, numbers, strings, bytes, None, and dicts, lists, tuples and sets of them"
    return errors.BadInput(f"{at} is {got}, which a checkpoint cannot hold; wanted: {wanted}. {what_to_do}")


def _array(rest: list[Any], tensors: Sequence[torch.Tensor]) -> Any:
    place, dtype, shape = rest
    return np.frombuffer(bytearray(tensors[place].numpy()), dtype=dtype).reshape(shape)


_Maker = Callable[[list[Any], Sequence[torch.Tensor]], Any]


def _each(make: Callable[[list[Any]], Any]) -> _Maker:
    return lambda rest, tensors: make([join_state(item, tensors) for item in rest])


def _mapping(make: Callable[[dict[Any, Any]], Any]) -> _Maker:
    return lambda rest, tensors: make({join_state(k, tensors): join_state(v, tensors) for k, v in rest})


_MAKERS: dict[str, _Maker] = {
    "tensor": lambda rest, tensors: tensors[rest[0]],
    "array": _array,
    "scalar": lambda rest, tensors: _array(rest, tensors)[()],
    "int": lambda rest, _: int(rest[0]),
    "size": lambda rest, _: torch.Size(rest),
    "dtype": lambda rest, _: getattr(torch, rest[0]),
    "dict": _mapping(lambda pairs: pairs),
    "ordered": _mapping(collections.OrderedDict),
    "counter": _mapping(collections.Counter),
    "list": _each(list),
    "tuple": _each(tuple),
    "set": _each(set),
    "frozenset": _each(frozenset),
}
