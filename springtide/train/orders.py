"""Which samples this worker trains next, as orders: index arrays with the identity that was theirs before anyone came.

In: leases from the link, and in a bsp group the rank. Next: data/source.py reads them, batches.py yields them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data import shards
from springtide.domain.leases import Grant
from springtide.domain.samples import DatasetCard, SampleRange
from springtide.rpc import messages
from springtide.train.leases import Leases

Indices = NDArray[np.int64]
ASK_AHEAD_BATCHES = 4  # a lease takes about a millisecond: a fraction of four steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One mini-batch to read and train. Without ranges it is a pause: nothing can be had just now."""

    indices: Indices
    ranges: tuple[SampleRange, ...] = ()
    share: float = 1.0
    """Part of the group's batch that this is: a bsp gradient counts by it."""
    finishes: Grant | None = None
    """The lease that is done once this batch is applied."""

    @property
    def samples(self) -> int:
        """How many."""
        return sum(one.count for one in self.ranges)

    @property
    def epoch(self) -> int:
        """Epoch it belongs to."""
        return self.ranges[0].epoch


PAUSE = Order(indices=np.empty(0, dtype=np.int64))


def leased(
    leases: Leases,
    card: DatasetCard,
    *,
    rank: int = 0,
    group: int = 1,
    draining: Callable[[], bool] = lambda: False,
) -> Iterator[Order]:
    """Batches of shards as the master leases them, until the pass is over for all workers.

    In a bsp group of `group` ranks every rank is leased the same shards, and takes its part of each batch.

    A PAUSE comes when nothing can be leased now: shards that others hold may come back, or our own last ones must be
    reported done first. So a reader that runs ahead never waits for a batch that it still keeps in its hand.
    Once the job is `draining` no more are read, even of a shard that was begun.
    """
    try:
        while not isinstance(answer := leases.take(card), messages.End):
            if isinstance(answer, messages.Wait):
                yield PAUSE
                continue
            for left, order in orders_of(answer, card, rank, group):
                if draining():
                    return
                if left == ASK_AHEAD_BATCHES:
                    leases.ask_ahead(card)
                yield order
    finally:
        leases.close()


def orders_of(lease: Grant, card: DatasetCard, rank: int, group: int) -> Iterator[tuple[int, Order]]:
    """The batches of one lease, each with how many follow it."""
    indices = shards.indices(card, epoch=lease.epoch, index=lease.nth, first=lease.first, end=lease.end)
    bounds = batch_bounds(len(indices), card.batch_size, group)
    for number, (begin, end) in enumerate(bounds):
        part = shards.rank_part(end - begin, rank=rank, workers=group)
        first, last = begin + part.start, begin + part.stop
        left = len(bounds) - number - 1
        identity = SampleRange(epoch=lease.epoch, shard=lease.shard, first=lease.first + first, count=last - first)
        order = Order(
            indices=indices[first:last],
            ranges=(identity,),
            share=(last - first) / (end - begin),
            finishes=lease if left == 0 else None,
        )
        yield left, order


def batch_bounds(samples: int, batch_size: int, group: int) -> list[tuple[int, int]]:
    """Where each batch of a shard begins and ends. A last one with fewer samples than ranks joins the one before."""
    ends = [*range(batch_size, samples, batch_size), samples]
    if len(ends) > 1 and ends[-1] - ends[-2] < group:
        del ends[-2]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def fit_to_group(card: DatasetCard, group: int) -> DatasetCard:
    """A card whose every batch can be shared by all ranks of a bsp group: no shard is smaller than the group."""
    if min(card.batch_size, card.samples_used) < group:
        raise errors.BadInput(
            f"a batch of {min(card.batch_size, card.samples_used)} samples cannot be shared by {group} workers. In bsp "
            'mode batch_size is the whole group\'s: raise it, or pass scaling="worker_batch" for that many each'
        )
    full, rest = divmod(card.samples_used, card.batch_size)
    if 0 < rest < group:
        # the last shard must hold a full batch besides, which the few samples left over can join
        fitting = next(size for size in itertools.count(card.shard_batches) if full % size)
        return dataclasses.replace(card, shard_batches=fitting)
    return card
