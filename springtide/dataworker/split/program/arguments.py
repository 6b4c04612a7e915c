"""Map the leaves of a batch to the arguments of `model(...)`, and rebuild these arguments from any other batch.

In: a batch, and the arguments that the training loop made from it. Out: a `ModelCall`, which data workers fill from
their own batches (payload.py). The leaves have the same numbers as in split.py.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.transport.layout import is_record
from springtide.embedding.lookup import id_routes

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
Path = tuple[id_routes.Step, ...]


class Computed(Exception):
    """Error for an argument that the loop computed, so that the argument is not part of the batch. The message names
    the argument.
    """


class Another(Exception):
    """Error for a batch that lacks an expected leaf, because its structure differs from the recorded batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLeaf:
    """A leaf of the batch, or a view of a leaf."""

    route: id_routes.Route


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantArgument:
    """A number, string or None that is the same for every batch."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerNode:
    """A container among the arguments, with its parts by key, index or field name."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Part", ...]


Part = BatchLeaf | ConstantArgument | ContainerNode


@dataclasses.dataclass(frozen=True, slots=True)
class ModelCall:
    """The mapping from a batch to the arguments of `model(...)`."""

    args: tuple[Part, ...]
    kwargs: tuple[tuple[str, Part], ...]

    def fill(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the loop would pass for this batch. Raise `Another` if the batch lacks a needed
        leaf.
        """
        return tuple(_fill(arg, batch) for arg in self.args), {name: _fill(part, batch) for name, part in self.kwargs}

    def find(self, batch: Any) -> list[Any]:
        """Return the leaves of this batch that the arguments use, in order; None stands for a missing leaf."""
        return [leaf.route.follow(batch) for leaf in self.leaves()]

    def fits(self, found: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return True if these arguments are the same objects as the leaves that `find` returned."""
        if len(args) != len(self.args) or len(kwargs) != len(self.kwargs):
            return False
        parts = iter(found)
        return all(_fits(arg, given, parts) for arg, given in zip(self.args, args, strict=True)) and all(
            name in kwargs and _fits(part, kwargs[name], parts) for name, part in self.kwargs
        )

    def in_order(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments in their recorded order, because leaf numbers depend on that order."""
        return {name: kwargs[name] for name, _ in self.kwargs}

    def leaves(self) -> list[BatchLeaf]:
        return [leaf for arg in (*self.args, *(part for _, part in self.kwargs)) for leaf in _leaves(arg)]


def trace(batch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModelCall:
    """Return a description of how these arguments are taken from this batch. Raise `Computed` if an argument does not
    come from the batch.
    """
    places = {id(leaf): path for path, leaf in nodes(batch)}
    return ModelCall(
        tuple(_trace(given, f"argument {i + 1}", batch, places) for i, given in enumerate(args)),
        tuple((name, _trace(given, f"argument {name}", batch, places)) for name, given in kwargs.items()),
    )


def nodes(batch: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return all objects in a batch that can be recognised by identity, each with its path."""
    if isinstance(batch, torch.Tensor) or id_routes.is_jagged(batch) or pytree.is_text(batch):
        return [(path, batch)]
    if isinstance(batch, PLAIN):
        return []
    opened = _opened(batch)
    if opened is None:
        return [(path, batch)]
    kind = "item" if isinstance(batch, Mapping | tuple | list) else "attr"
    return [found for key, value in zip(*opened, strict=True) for found in nodes(value, (*path, (kind, key)))]


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
    opened = _opened(given)
    if opened is None or (isinstance(given, Mapping) and not isinstance(given, dict)):
        raise Computed(f"{name}, a {type(given).__name__}")
    keys, parts = opened
    return ContainerNode(type(given), keys, tuple(_trace(part, name, batch, places) for part in parts))


def _opened(given: Any) -> tuple[tuple[Any, ...], Sequence[Any]] | None:
    """Return the keys and parts of a container; None for an unknown object."""
    if isinstance(given, Mapping):
        return tuple(given), tuple(given.values())
    if isinstance(given, tuple | list):
        return tuple(range(len(given))), given
    names = tuple(field.name for field in dataclasses.fields(given)) if is_record(given) else None
    return None if names is None else (names, [getattr(given, name) for name in names])


def _fill(part: Part, batch: Any) -> Any:
    if isinstance(part, ConstantArgument):
        return part.value
    if isinstance(part, BatchLeaf):
        found = part.route.follow(batch)
        if found is None:
            raise Another(f"this batch differs in structure from earlier ones: it has no {spelled(part.route.path)}")
        return found
    parts = [_fill(inner, batch) for inner in part.parts]
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
    if isinstance(given, dict) and set(given) == set(part.keys):
        held: Sequence[Any] = [given[key] for key in part.keys]
    else:
        keys, held = _opened(given) or ((), ())
        if keys != part.keys:
            return False
    return all(_fits(inner, value, parts) for inner, value in zip(part.parts, held, strict=True))


def _leaves(part: Part) -> list[BatchLeaf]:
    if isinstance(part, BatchLeaf):
        return [part]
    return [] if isinstance(part, ConstantArgument) else [leaf for inner in part.parts for leaf in _leaves(inner)]


def spelled(path: Path, batch: Any = None) -> str:
    """Write the path of a leaf as user code: `batch.x`, `batch['ids'][0]`."""
    written = "batch"
    for kind, name in path:
        named = kind == "item" and isinstance(batch, tuple) and hasattr(batch, "_fields")
        written += f".{batch._fields[name] if named else name}" if named or kind == "attr" else f"[{name!r}]"
        batch = None if batch is None else getattr(batch, name) if kind == "attr" else batch[name]
    return written
