"""What a user may ask of a loader, understood once: which order, which samples, whether that fits together.

In: the arguments of loader.py, named as torch's DataLoader names them. Out: the order of batches and what a place in it
means. Next: loader.py.
"""

import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.utils import data

from springtide import errors
from springtide.dataworker.loader.custom_sampler import OwnSampler
from springtide.dataworker.loader.loader_state import Kind
from springtide.dataworker.loader.sampler import Order

BatchOrder = Order | OwnSampler


FIXED = frozenset({"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"})
"""What a loader is made of; DataLoader refuses to have most of these changed too."""


class Given(Protocol):
    """The arguments that decide the order."""

    dataset: Any
    batch_size: int | None
    shuffle: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool
    multiprocessing_context: Any


def check(given: Given) -> None:
    """Arguments that contradict each other are refused, as DataLoader refuses them."""
    size = given.batch_size
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise errors.BadInput(f"batch_size={size!r}: wanted a whole number, 1 or more, or None for samples as they are")
    context = given.multiprocessing_context
    if isinstance(context, str) and context not in multiprocessing.get_all_start_methods():
        raise errors.BadInput(
            f"multiprocessing_context={context!r}: wanted one of {', '.join(multiprocessing.get_all_start_methods())}"
        )
    if given.batch_sampler is not None and (
        given.batch_size != 1 or given.shuffle or given.sampler is not None or given.drop_last
    ):
        raise errors.BadInput(
            "batch_sampler= makes the batches, so batch_size, shuffle, sampler and drop_last must be left out"
        )
    if given.sampler is not None and given.shuffle:
        raise errors.BadInput("sampler= decides the order, so shuffle=True must be left out")
    if given.batch_size is None and given.drop_last:
        raise errors.BadInput("batch_size=None makes no batches, so drop_last=True has no meaning: leave it out")
    if not isinstance(given.dataset, data.IterableDataset):
        return
    if given.shuffle or given.sampler is not None or given.batch_sampler is not None:
        raise errors.BadInput(
            f"{type(given.dataset).__name__} is an IterableDataset: it has its own order, so shuffle, sampler and "
            "batch_sampler must be left out"
        )


def usual_collate(given: Given) -> Callable[[Any], Any]:
    """What makes a batch of samples where the user does not say, as in a DataLoader."""
    single = given.batch_size is None and given.batch_sampler is None
    return data.default_convert if single else data.default_collate


def order_of(given: Given, *, seed: int, rank: int | None, world: int | None) -> BatchOrder:
    """The order of batches of an indexable data set."""
    if given.batch_sampler is not None:
        return OwnSampler(given.batch_sampler, batch_size=None, seed=seed)
    if given.sampler is not None:
        return OwnSampler(given.sampler, batch_size=given.batch_size or 1, drop_last=given.drop_last, seed=seed)
    if not hasattr(given.dataset, "__len__"):
        raise errors.BadInput(
            f"{type(given.dataset).__name__} has no len(): wanted a data set with __len__ and __getitem__ (or "
            "batch(indices)), a sampler=, or an IterableDataset"
        )
    rank, world = _place_among_ranks(rank, world)
    return Order(
        samples=len(given.dataset),
        batch_size=1 if given.batch_size is None else given.batch_size,
        shuffle=given.shuffle,
        drop_last=given.drop_last,
        seed=seed,
        rank=rank,
        world=world,
    )


def kind_of(order: BatchOrder | None) -> Kind:
    """What a place in this order means; None: a stream."""
    if isinstance(order, Order):
        return Kind(unit="samples", samples=order.samples, shuffle=order.shuffle)
    return Kind(unit="batches read" if order is None else "batches", samples=None, shuffle=False)


def length(order: BatchOrder) -> int:
    """Batches of a whole epoch."""
    return order.steps() if isinstance(order, Order) else len(order)


def _place_among_ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return group.get_rank(), group.get_world_size()
        return 0, 1
    if world is None or (rank is None and world != 1):
        raise errors.BadInput(
            f"rank={rank}, world={world}: wanted both, or neither to take them from torch.distributed"
        )
    return rank or 0, world
