"""Sum the dense gradients of a bsp group in batch order, with equal results on every rank.

In: the step passes each unit through unit_gradients.py, then calls `load` and `reduce` as for allreduce.py. Out: the
group's gradient in every `p.grad`. Each rank sums one slice of all parameters: it receives that slice of every unit,
and sends the sum to all ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.worker.bsp.allreduce import Reducer, said
from springtide.worker.bsp.batch_order import exchange

PLACE = 8
"""Bytes of a unit's position in the batch, which precede the unit's floats."""


class OrderedReducer(Reducer):
    """Sums the gradients of units in order. A unit without a gradient for a parameter counts as zeros."""

    def __init__(self, params: Sequence[nn.Parameter], group: Any, *, words: int = 0) -> None:
        super().__init__(params, group, words=words)
        self._units: list[tuple[int, list[torch.Tensor]]] = []
        self._present: list[list[bool]] = []
        self.drop()

    def keep(self, place: int, share: float) -> None:
        """Copy the current gradients of the unit at this position of the batch."""
        flats = []
        for members, bucket, present in zip(self._members, self._buckets, self._present, strict=True):
            grads = [self.params[index].grad for index in members]
            flat = torch.zeros(sum(view.numel() for view in bucket.views), dtype=bucket.flat.dtype)
            parts = flat.split([view.numel() for view in bucket.views])
            for number, (grad, part) in enumerate(zip(grads, parts, strict=True)):
                if grad is not None:
                    part.copy_((grad.to_dense() if grad.is_sparse else grad).reshape(-1))
                    present[number] = True
            flats.append(flat.mul_(share))
        self._units.append((place, flats))

    def drop(self) -> None:
        self._units = []
        self._present = [[False] * len(members) for members in self._members]

    def load(self, *, share: float, skip: bool) -> None:
        self._skip = skip
        for bucket, present in zip(self._buckets, self._present, strict=True):
            words = self.words if bucket is self._buckets[0] else ()
            bucket.flags.copy_(torch.tensor([skip, *words, *present]))
            bucket.own.copy_(bucket.flat)

    def reduce(self) -> bool:
        """Replace each `p.grad` by the sum of all units in batch order; return True if any rank wants to skip the
        step.
        """
        for bucket in self._buckets:
            bucket.flat.copy_(bucket.own)
            if bucket is self._buckets[0] and self.words:
                bucket.flags[1 : 1 + len(self.words)] = torch.tensor(self.words)
            try:
                if self.group is not None:
                    self.group.allreduce([bucket.flags]).wait()
            except RuntimeError as error:
                raise errors.GroupChanged(f"a member of the group is lost: {said(error)}") from None
        self.sums = self._buckets[0].flags[1 : 1 + len(self.words)].tolist()
        if self._buckets[0].flags[0]:
            return True
        for number, bucket in enumerate(self._buckets):
            units = [(place, flats[number]) for place, flats in self._units]
            total = in_order(units) if self.group is None else summed(self.group, units)
            bucket.flat[: len(total)] = total
        self.deal()
        return False


def in_order(units: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Sum the units one by one by position, starting with an unchanged copy of the first."""
    first, *others = [flat for _, flat in sorted(units, key=lambda unit: unit[0])]
    total = first.clone()
    for flat in others:
        total += flat
    return total


def summed(group: Any, units: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of all ranks' units in order. Every rank has at least one unit."""
    if not units[0][1].numel():  # the model has no parameter of this data type, on any rank
        return units[0][1]
    ranks, (floats, kind) = group.size(), (units[0][1].numel(), units[0][1].dtype)
    each = -(-floats // ranks)
    bounds = [(min(floats, rank * each), min(floats, (rank + 1) * each)) for rank in range(ranks)]
    parcels = [
        b"".join(place.to_bytes(PLACE, "little") + raw(flat[begin:end]) for place, flat in units)
        for begin, end in bounds
    ]
    begin, end = bounds[group.rank()]
    size = PLACE + (end - begin) * units[0][1].element_size()
    mine = []
    for parcel in exchange.to_each(group, parcels):
        for at in range(0, len(parcel), size):
            place = int.from_bytes(parcel[at : at + PLACE], "little")
            mine.append((place, cooked(parcel[at + PLACE : at + size], kind)))
    slices = exchange.to_each(group, [raw(in_order(mine))] * ranks)
    return torch.cat([cooked(part, kind) for part in slices])


def raw(flat: torch.Tensor) -> bytes:
    return flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def cooked(parcel: bytes, kind: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(parcel, np.uint8).copy()).view(kind) if parcel else torch.empty(0, dtype=kind)
