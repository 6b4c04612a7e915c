"""Learn which view of which batch leaf holds a module's ids, and find that view in the next batch.

In: a batch of any shape (tuples, lists, dicts, dataclasses, tensors) and the ids that a module was called with. Out: a
Route that finds the corresponding ids in the next batch. Next: embedding/lookup/lookup.py uses routes to prefetch.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Step = tuple[str, Any]
"""Step of a route. ("item", key) and ("attr", name) lead to a leaf. ("select", dim, i), ("narrow", dim, start, length)
and ("shape", tail) make a view of the leaf.
"""


def leaves(batch: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield all present tensors of a batch with their paths. A jagged tensor counts as one leaf."""
    if is_absent(batch):
        return
    if isinstance(batch, torch.Tensor) or is_jagged(batch):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, (*path, ("item", key)))
    elif isinstance(batch, tuple | list):
        for i, value in enumerate(batch):
            yield from leaves(value, (*path, ("item", i)))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from leaves(getattr(batch, field.name), (*path, ("attr", field.name)))


def is_jagged(value: Any) -> bool:
    return type(value).__name__ == "KeyedJaggedTensor"


def is_absent(value: Any) -> bool:
    """Return True for a placeholder of a missing tensor (worker/split/lazy_leaf.py). Reading its values would fetch
    them.
    """
    return getattr(type(value), "springtide_absent", False) is True


def real(value: Any) -> Any:
    while is_absent(value):
        value = value.here()
    return value


def key_of(value: Any) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with the same memory, layout and version."""
    if type(value) is not torch.Tensor:
        if is_jagged(value):
            parts = (value.values(), value.lengths(), value.weights_or_none())
            return ("jagged", *(None if one is None else key_of(one) for one in parts), tuple(value.keys()))
        if not isinstance(value, torch.Tensor):
            return (id(value),)  # the lookup call that follows raises the error
    stride = value.stride()
    shape = value.shape
    if len(shape) == 2 and shape[1] == 1:
        stride = (stride[0], 0)
    version = 0 if value.is_inference() else value._version
    return (value.data_ptr(), version, shape, stride)


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """Path from a batch to the ids of one lookup call."""

    path: tuple[Step, ...]
    view: tuple[Any, ...] = ()

    def follow(self, batch: Any) -> Any | None:
        try:
            for kind, name in self.path:
                batch = getattr(batch, name) if kind == "attr" else batch[name]
            return None if self.view and is_absent(batch) else _apply(self.view, batch)
        except (AttributeError, KeyError, IndexError, TypeError, RuntimeError):
            return None


def _apply(view: tuple[Any, ...], leaf: Any) -> Any:
    match view:
        case ():
            return leaf
        case ("select", dim, i):
            return leaf.select(dim, i)
        case ("narrow", dim, start, length):
            return leaf.narrow(dim, start, length)
        case ("shape", tail):
            return leaf.view(-1, *tail)
    raise ValueError(f"no view named {view[0]!r}")


def find(batch: Any, ids: Any) -> Route | None:
    """Return the route to these ids, or None if they are not a view of any leaf, so that the model computed them."""
    wanted = key_of(ids)
    for path, leaf in leaves(batch):
        if is_jagged(leaf) or is_jagged(ids):
            if is_jagged(leaf) and is_jagged(ids) and key_of(leaf) == wanted:
                return Route(path)
            continue
        if leaf.dtype != ids.dtype or leaf.dim() == 0 or not _same_memory(leaf, ids):
            continue
        for view in _candidates(leaf, ids):
            route = Route(path, view)
            seen = route.follow(batch)
            if seen is not None and key_of(seen) == wanted:
                return route
    return None


def _same_memory(leaf: torch.Tensor, ids: torch.Tensor) -> bool:
    return leaf.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()


def _candidates(leaf: torch.Tensor, ids: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield views of the leaf that may be the ids; the caller compares them. The first dimension is the batch and is
    never cut.
    """
    yield ()
    start = ids.storage_offset() - leaf.storage_offset()
    for dim in range(1, leaf.dim()):
        if leaf.stride(dim) == 0:
            continue
        first = start // leaf.stride(dim)
        if not 0 <= first < leaf.shape[dim]:
            continue
        if ids.dim() == leaf.dim() - 1:
            yield ("select", dim, first)
        elif ids.dim() == leaf.dim():
            yield ("narrow", dim, first, ids.shape[dim])
    if leaf.is_contiguous() and ids.dim() >= 1:
        yield ("shape", tuple(ids.shape[1:]))
