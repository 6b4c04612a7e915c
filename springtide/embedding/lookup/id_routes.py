"""Finds a module's ids in later batches: which leaf of the batch holds the ids, as which view, and at which address.

In: a batch of any structure and the ids that a module was called with. Out: a `Route`, and for a batch of a known
layout (`CallCache`) its lookup calls by address arithmetic alone. Next: embedding/lookup/lookup.py prefetches.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from springtide.embedding.lookup.calls import Call, DeviceCall, LookupCall

Step = tuple[str, Any]
"""Step of a route: ("item", key) or ("attr", name) leads to a leaf; "select", "narrow" or "shape" leads to a view of
the leaf."""
Layout = tuple[Any, ...]
Key = tuple[Any, ...]
KEPT_LAYOUTS = 4  # most layouts to remember: full batches, the last batch of an epoch, and two spare layouts


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
    """Return True for a placeholder (worker/split/received_batches.py), whose values must be fetched to be read."""
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
            return ("jagged", *(None if part is None else key_of(part) for part in parts), tuple(value.keys()))
        if not isinstance(value, torch.Tensor):
            return (id(value),)  # any key suffices: the following lookup call raises the error
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
    """Return the route to these ids. Return None if the ids are not a view of any leaf. The model has then computed the
    ids.
    """
    wanted = key_of(ids)
    for path, leaf in leaves(batch):
        if is_jagged(leaf) or is_jagged(ids):
            if is_jagged(leaf) and is_jagged(ids) and key_of(leaf) == wanted:
                return Route(path)
            continue
        same_memory = leaf.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()
        if leaf.dtype != ids.dtype or leaf.dim() == 0 or not same_memory:
            continue
        for view in _candidates(leaf, ids):
            route = Route(path, view)
            seen = route.follow(batch)
            if seen is not None and key_of(seen) == wanted:
                return route
    return None


def _candidates(leaf: torch.Tensor, ids: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield views of the leaf that could be the ids. The first dimension is the batch and is never cut."""
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


class FoundCall(NamedTuple):
    """Lookup call of a batch with its key, the routes to its ids, and the record of the module that makes the call."""

    key: Key
    call: Call
    inputs: tuple[Route | None, ...]
    learnt: Any


class _Part(NamedTuple):
    """Lookup call whose ids start `delta` bytes after the start of a batch leaf."""

    found: FoundCall
    leaf: int
    delta: int


class CallCache:
    """Lookup calls of earlier batches, by batch layout."""

    def __init__(self) -> None:
        self._paths: list[Route] | None = None
        self._known: dict[Layout, list[_Part] | None] = {}

    def forget(self) -> None:
        self._paths = None
        self._known.clear()

    def recall(self, batch: Any) -> list[FoundCall] | None:
        if self._paths is None:
            return None
        leaves: list[Any] = [path.follow(batch) for path in self._paths]
        parts = self._known.get(_layout(leaves))
        if parts is None:
            return None
        bases = [key_of(leaf)[:2] for leaf in leaves]
        recalled = []
        for (key, call, inputs, learnt), at, delta in parts:
            base, version = bases[at]  # views of a leaf share its version
            address = base + delta
            _, _, shape, strides = key[1]
            if isinstance(call, DeviceCall):
                leaf = leaves[at]
                moved: Call = call.moved(leaf, leaf.storage_offset() + delta // leaf.itemsize)
            else:
                _, count, stride = call.ids[0]
                moved = LookupCall(
                    call.features, [(address, count, stride)], call.bags, call.shapes, call.places, (leaves[at],)
                )
            recalled.append(FoundCall((key[0], (address, version, shape, strides), *key[2:]), moved, inputs, learnt))
        return recalled

    def note(self, batch: Any, found: Sequence[FoundCall]) -> None:
        """Remember the layout of this batch, if all its lookup calls use plain views of its leaves."""
        if self._paths is None:
            paths = {call.inputs[0].path: Route(call.inputs[0].path) for call in found if call.inputs[0] is not None}
            self._paths = list(paths.values())
        leaves = [path.follow(batch) for path in self._paths]
        layout = _layout(leaves)
        if layout in self._known or len(self._known) >= KEPT_LAYOUTS:
            return
        at = {path.path: index for index, path in enumerate(self._paths)}
        parts = [_part(call, leaves, at) for call in found]
        self._known[layout] = None if any(part is None for part in parts) else [part for part in parts if part]


def _part(call: FoundCall, leaves: Sequence[Any], at: dict[Any, int]) -> _Part | None:
    """Return the lookup results of one call. Return None for offsets, several features, copied ids, or an unknown
    leaf.
    """
    route, *others = call.inputs
    if isinstance(call.call, DeviceCall):
        ids = call.call.ids
        address = ids.untyped_storage().data_ptr() + call.call.offset * ids.itemsize
        plain = call.call.offsets is None
    else:
        plain = type(call.call) is LookupCall and len(call.call.ids) == 1 and not call.call.bags[0][3]
        address = call.call.ids[0][0] if plain else 0
    if not plain or call.call.weights is not None:
        return None
    if route is None or any(other is not None for other in others) or route.path not in at:
        return None
    index = at[route.path]
    if address != call.key[1][0]:
        return None
    return _Part(call, index, address - leaves[index].data_ptr())


def _layout(leaves: Sequence[Any]) -> Layout:
    """Return the properties that two batches with the same layout share: everything except addresses."""
    if not all(type(leaf) is torch.Tensor for leaf in leaves):
        return ()
    return tuple((leaf.dtype, leaf.shape, leaf.stride(), leaf.device.type) for leaf in leaves)
