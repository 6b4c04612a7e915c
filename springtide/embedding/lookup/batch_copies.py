"""Recognizes id tensors that the user's loop has copied to the GPU, so that their rows can be requested one batch
ahead.

In: the batch in CPU memory, and the ids with which a module was called. Out: the same view of the tensor in the batch.
For the first batches, this process compares the values, and waits for the GPU. For later batches, the GPU compares
them, and the push is refused if values differ. Next: embedding/lookup/lookup.py.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from springtide.embedding.device.copies import copies_of
from springtide.embedding.lookup import id_routes
from springtide.embedding.lookup.calls import INTEGERS

TRIES = 3
"""Number of batches whose values are compared on the CPU before the GPU compares them."""


class SameIds(NamedTuple):
    """Ids of the batch that are equal to ids on the GPU."""

    ids: torch.Tensor
    differs: torch.Tensor | None
    """A number on the GPU that is 0 if the ids are really equal; None if the CPU has compared them."""


@dataclass(slots=True, eq=False)
class _Guess:
    """The tensor of the batch that was copied in earlier batches."""

    route: id_routes.Route | None = None
    confirmed: int = 0
    misses: int = 0


class _Copy(NamedTuple):
    """A tensor on the GPU that this batch has used."""

    whole: torch.Tensor
    version: int
    leaf: torch.Tensor | None
    differs: torch.Tensor | None


class BatchCopies:
    """Copies of the tensors of batches."""

    def __init__(self) -> None:
        self._batch: Any = None
        self._copies: dict[int, _Copy] = {}
        self._guesses: dict[tuple[Any, ...], _Guess] = {}

    def begin(self, batch: Any) -> None:
        self._batch = batch
        self._copies.clear()

    def find(self, ids: Any) -> SameIds | None:
        """Return the batch's ids of which these ids are a copy; return None if there are none."""
        if type(ids) is not torch.Tensor or ids.dtype not in INTEGERS:
            return None
        whole = ids if ids._base is None else ids._base
        copy = self._copies.get(whole.data_ptr())
        if copy is None or not torch.is_grad_enabled():  # without gradients, no push can report a mistake later
            copy = self._copies[whole.data_ptr()] = self._recognize(whole)
        if copy.leaf is None or copy.version != whole._version:
            return None
        start = int(ids.storage_offset()) - int(whole.storage_offset()) + int(copy.leaf.storage_offset())
        return SameIds(copy.leaf.as_strided(ids.shape, ids.stride(), start), copy.differs)

    def _recognize(self, whole: torch.Tensor) -> _Copy:
        layout = (len(self._copies), whole.dtype, whole.shape, whole.stride())
        guess = self._guesses.setdefault(layout, _Guess())
        if guess.misses >= TRIES:
            return _Copy(whole, whole._version, None, None)
        leaf = None if guess.route is None else guess.route.follow(self._batch)
        if leaf is not None and _alike(leaf, whole):
            if guess.confirmed >= TRIES and torch.is_grad_enabled():
                return _Copy(whole, whole._version, leaf, _differs(leaf, whole))
            if _equal(leaf, whole):
                guess.confirmed += 1
                return _Copy(whole, whole._version, leaf, None)
        guess.route, guess.confirmed = None, 0
        for path, other in id_routes.leaves(self._batch):
            if isinstance(other, torch.Tensor) and _alike(other, whole) and _equal(other, whole):
                guess.route, guess.confirmed = id_routes.Route(path), 1
                return _Copy(whole, whole._version, other, None)
        guess.misses += 1
        return _Copy(whole, whole._version, None, None)


def _alike(leaf: torch.Tensor, whole: torch.Tensor) -> bool:
    same = leaf.dtype == whole.dtype and leaf.shape == whole.shape and leaf.stride() == whole.stride()
    return same and leaf.is_cpu and leaf.data_ptr() != whole.data_ptr()


def _equal(leaf: torch.Tensor, whole: torch.Tensor) -> bool:
    return torch.equal(leaf, whole.to("cpu"))


def _differs(leaf: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    copies = copies_of(whole.device)
    near = copies.to_device(leaf.pin_memory() if copies.cuda and not leaf.is_pinned() else leaf)
    copies.join(near)
    return (near != whole).any().float()
