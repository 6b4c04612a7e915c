"""Which leaves of a batch become which arguments of `model(...)`: seen once, then made again from any batch.

In: a batch and the arguments that the loop made of it (worker/split/controller.py). Out: a `Call`, which data workers
fill from their own batches (dataworker/split/program/payload.py), and a list of leaves in the order that
dataworker/split/search/split.py knows.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from springtide.dataworker.transport.layout import is_record
from springtide.embedding.lookup import id_routes

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
Path = tuple[id_routes.Step, ...]


class Computed(Exception):
    """An argument is no part of the batch: the loop has computed it. Says which."""


class Another(Exception):
    """A batch has no such leaf: it is built otherwise than the one that was seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLeaf:
    """A part of the batch, or a view of one."""

    route: id_routes.Route


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantArgument:
    """A number, a string, None: the same with every batch."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerNode:
    """A container that the loop has made, or that is one of the batch's: its parts by key, index or name."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Part", ...]


Part = BatchLeaf | ConstantArgument | ContainerNode


@dataclasses.dataclass(frozen=True, slots=True)
class ModelCall:
    """How `model(...)` is called with a batch."""

    args: tuple[Part, ...]
    kwargs: tuple[tuple[str, Part], ...]

    def fill(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the loop would make of this batch; `Another` where it has no such leaves."""
        return tuple(_fill(one, batch) for one in self.args), {name: _fill(one, batch) for name, one in self.kwargs}

    def find(self, batch: Any) -> list[Any]:
        """The parts of this batch that the arguments are made of, as `leaves` has them; None where it has no such."""
        return [leaf.route.follow(batch) for leaf in self.leaves()]

    def fits(self, found: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether these arguments are the very parts that were found in a batch."""
        if len(args) != len(self.args) or len(kwargs) != len(self.kwargs):
            return False
        parts = iter(found)
        return all(_fits(one, given, parts) for one, given in zip(self.args, args, strict=True)) and all(
            name in kwargs and _fits(one, kwargs[name], parts) for name, one in self.kwargs
        )

    def in_order(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same, in the order in which they were seen first: leaves are counted in it."""
        return {name: kwargs[name] for name, _ in self.kwargs}

    def leaves(self) -> list[BatchLeaf]:
        """Parts of the batch among the arguments, in their order."""
        return [leaf for one in (*self.args, *(part for _, part in self.kwargs)) for leaf in _leaves(one)]


def is_text(value: Any) -> bool:
    """Whether this is a list of strings: one leaf, however many there are."""
    return type(value) in (list, tuple) and bool(value) and all(type(one) is str for one in value)


def trace(batch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModelCall:
    """How these arguments come from this batch; `Computed` where one does not."""
    places = {id(leaf): path for path, leaf in nodes(batch)}
    return ModelCall(
        tuple(_trace(given, f"argument {i + 1}", batch, places) for i, given in enumerate(args)),
        tuple((name, _trace(given, f"argument {name}", batch, places)) for name, given in kwargs.items()),
    )


def nodes(batch: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Everything in a batch that can be known again by identity, with the way to it."""
    if isinstance(batch, torch.Tensor) or id_routes.is_jagged(batch) or is_text(batch):
        return [(path, batch)]
    if isinstance(batch, PLAIN):
        return []
    if isinstance(batch, Mapping):
        return [found for key, value in batch.items() for found in nodes(value, (*path, ("item", key)))]
    if isinstance(batch, tuple | list):
        return [found for i, value in enumerate(batch) for found in nodes(value, (*path, ("item", i)))]
    if is_record(batch):
        names = [field.name for field in dataclasses.fields(batch)]
        return [found for name in names for found in nodes(getattr(batch, name), (*path, ("attr", name)))]
    return [(path, batch)]


def _trace(given: Any, name: str, batch: Any, places: Mapping[int, Path]) -> Part:
    if id(given) in places:
        return BatchLeaf(id_routes.Route(places[id(given)]))
    if isinstance(given, PLAIN):
        return ConstantArgument(given)
    if isinstance(given, torch.Tensor):
        route = (
            None if id_routes.is_absent(given) or given.layout is not torch.strided else id_routes.find(batch, given)
        )
        if route is None:
            raise Computed(name)
        return BatchLeaf(route)
    if isinstance(given, dict | tuple | list):
        keys, parts = _opened(given)
        return ContainerNode(type(given), keys, tuple(_trace(one, name, batch, places) for one in parts))
    if is_record(given):
        names = tuple(field.name for field in dataclasses.fields(given))
        return ContainerNode(
            type(given), names, tuple(_trace(getattr(given, one), name, batch, places) for one in names)
        )
    raise Computed(f"{name}, a {type(given).__name__}")


def _opened(given: Any) -> tuple[tuple[Any, ...], Sequence[Any]]:
    return (tuple(given), tuple(given.values())) if isinstance(given, dict) else (tuple(range(len(given))), given)


def _fill(part: Part, batch: Any) -> Any:
    if isinstance(part, ConstantArgument):
        return part.value
    if isinstance(part, BatchLeaf):
        found = part.route.follow(batch)
        if found is None:
            raise Another(f"a batch has another structure than those before it: it has no {spelled(part.route.path)}")
        return found
    parts = [_fill(one, batch) for one in part.parts]
    if issubclass(part.kind, dict):
        return part.kind(zip(part.keys, parts, strict=True))
    if issubclass(part.kind, tuple) and hasattr(part.kind, "_make"):
        return part.kind._make(parts)
    if issubclass(part.kind, tuple | list):
        return part.kind(parts)
    return part.kind(**dict(zip(part.keys, parts, strict=True)))


def _fits(part: Part, given: Any, parts: Iterator[Any]) -> bool:
    if isinstance(part, BatchLeaf):
        found = next(parts)
        if found is given:
            return found is not None
        viewed = bool(part.route.view) and isinstance(given, torch.Tensor) and not id_routes.is_absent(given)
        return viewed and found is not None and id_routes.key_of(found) == id_routes.key_of(given)
    if isinstance(part, ConstantArgument):
        return type(given) is type(part.value) and bool(given == part.value)
    if type(given) is not part.kind:
        return False
    if isinstance(given, dict | tuple | list):
        keys, held = _opened(given)
        if isinstance(given, dict) and keys != part.keys and set(keys) == set(part.keys):
            keys, held = part.keys, tuple(given[key] for key in part.keys)
    else:
        keys, held = part.keys, tuple(getattr(given, name) for name in part.keys)
    return keys == part.keys and all(_fits(one, each, parts) for one, each in zip(part.parts, held, strict=True))


def _leaves(part: Part) -> list[BatchLeaf]:
    if isinstance(part, BatchLeaf):
        return [part]
    return [] if isinstance(part, ConstantArgument) else [leaf for one in part.parts for leaf in _leaves(one)]


def spelled(path: Path, batch: Any = None) -> str:
    """The way to a leaf of a batch as a user would write it: `batch.x`, `batch['ids'][0]`."""
    written = "batch"
    for kind, name in path:
        named = kind == "item" and isinstance(batch, tuple) and hasattr(batch, "_fields")
        written += f".{batch._fields[name] if named else name}" if named or kind == "attr" else f"[{name!r}]"
        batch = None if batch is None else getattr(batch, name) if kind == "attr" else batch[name]
    return written
