"""Derive the lookup calls of a batch from an earlier batch of the same layout, by moving addresses only.

In: the calls that embedding/lookup/lookup.py found for a batch. Out: the calls of the next batch, computed from the
addresses of its leaves, or None if its layout differs. The cache avoids creating a view of every column of every batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from springtide.embedding.lookup import id_routes
from springtide.embedding.lookup.calls import LookupCall

Layout = tuple[Any, ...]
Key = tuple[Any, ...]
KEPT_LAYOUTS = 4  # full batches, the last batch of an epoch, and two spare


class FoundCall(NamedTuple):
    """Lookup call of a batch with its key, the routes to its ids, and the record of the module that makes the call."""

    key: Key
    call: LookupCall
    inputs: tuple[id_routes.Route | None, ...]
    learnt: Any


class _Part(NamedTuple):
    """Lookup call whose ids start `delta` bytes after the start of a batch leaf."""

    found: FoundCall
    leaf: int
    delta: int


class CallCache:
    """Lookup calls of earlier batches, by batch layout."""

    def __init__(self) -> None:
        self._paths: list[id_routes.Route] | None = None
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
        bases = [id_routes.key_of(leaf)[:2] for leaf in leaves]
        recalled = []
        for (key, call, inputs, learnt), at, delta in parts:
            base, version = bases[at]  # views of a leaf share its version
            address = base + delta
            (_, count, stride), (_, _, shape, strides) = call.ids[0], key[1]
            moved = LookupCall(
                call.features, [(address, count, stride)], call.bags, call.shapes, call.places, (leaves[at],)
            )
            recalled.append(FoundCall((key[0], (address, version, shape, strides), *key[2:]), moved, inputs, learnt))
        return recalled

    def note(self, batch: Any, found: Sequence[FoundCall]) -> None:
        """Remember the layout of this batch, if all its lookup calls use plain views of its leaves."""
        if self._paths is None:
            paths = {
                one.inputs[0].path: id_routes.Route(one.inputs[0].path) for one in found if one.inputs[0] is not None
            }
            self._paths = list(paths.values())
        leaves = [path.follow(batch) for path in self._paths]
        layout = _layout(leaves)
        if layout in self._known or len(self._known) >= KEPT_LAYOUTS:
            return
        at = {path.path: index for index, path in enumerate(self._paths)}
        parts = [_part(one, leaves, at) for one in found]
        self._known[layout] = None if any(part is None for part in parts) else [part for part in parts if part]


def _part(one: FoundCall, leaves: Sequence[Any], at: dict[Any, int]) -> _Part | None:
    """Return the part of one call. Return None for offsets, several features, copied ids, or an unknown leaf."""
    route, *others = one.inputs
    if (
        type(one.call) is not LookupCall
        or len(one.call.ids) != 1
        or one.call.bags[0][3]
        or one.call.weights is not None
    ):
        return None
    if route is None or any(other is not None for other in others) or route.path not in at:
        return None
    index = at[route.path]
    address = one.call.ids[0][0]
    if address != one.key[1][0]:
        return None
    return _Part(one, index, address - leaves[index].data_ptr())


def _layout(leaves: Sequence[Any]) -> Layout:
    """Return the properties that two batches must share: everything except addresses."""
    if not all(type(leaf) is torch.Tensor for leaf in leaves):
        return ()
    return tuple((leaf.dtype, leaf.shape, leaf.stride(), leaf.device.type) for leaf in leaves)
