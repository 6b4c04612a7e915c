"""Which samples this worker trains next, as orders: index arrays with the identity that was theirs before anyone came.

In: leases from the link (async), or rank and group size (bsp). Next: data/source.py reads them, batches.py yields them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data import shards
from springtide.domain.samples import DatasetCard, SampleRange
from springtide.rpc import messages

Indices = NDArray[np.int64]
Answer = messages.Lease | messages.Wait | messages.End


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One mini-batch to read and train. Without ranges it is a pause: nothing can be had just now."""

    indices: Indices
    ranges: tuple[SampleRange, ...] = ()
    share: float = 1.0
    """Part of the group's batch that this is: a bsp gradient counts by it."""
    finishes: int | None = None
    """The leased shard that is done once this batch is applied."""

    @property
    def samples(self) -> int:
        """How many."""
        return sum(one.count for one in self.ranges)

    @property
    def epoch(self) -> int:
        """Epoch it belongs to."""
        return self.ranges[0].epoch


PAUSE = Order(indices=np.empty(0, dtype=np.int64))


def leased(lease: Callable[[DatasetCard], Answer], card: DatasetCard) -> Iterator[Order]:
    """Batches of shards as the master leases them, until the pass is over for all workers.

    A PAUSE comes when nothing can be leased now: shards that others hold may come back, or our own last ones must be
    reported done first. So a reader that runs ahead never waits for a batch that it still keeps in its hand.
    """
    while not isinstance(answer := lease(card), messages.End):
        if isinstance(answer, messages.Wait):
            yield PAUSE
            continue
        first = answer.first * card.batch_size
        indices = shards.indices(card, epoch=answer.epoch, index=answer.index, first=first)
        indices = indices[: answer.batches * card.batch_size]
        for offset in range(0, len(indices), card.batch_size):
            part = indices[offset : offset + card.batch_size]
            yield Order(
                indices=part,
                ranges=(
                    SampleRange(epoch=answer.epoch, shard=answer.shard, first=first + offset, count=len(part)),
                ),
                finishes=answer.shard if offset + len(part) == len(indices) else None,
            )


def in_step(card: DatasetCard, *, rank: int, workers: int) -> Iterator[Order]:
    """A rank's part of each batch of the group, in the one order that the whole group follows.

    Fewer samples than workers at the end of an epoch join the batch before, so that no rank is ever without one.
    """
    for epoch in range(card.first_epoch, card.first_epoch + card.epochs):
        for begin, end in group_batches(card, workers):
            part = shards.rank_part(end - begin, rank=rank, workers=workers)
            positions = np.arange(begin + part.start, begin + part.stop, dtype=np.int64)
            indices = positions
            if card.shuffle:
                indices = shards.permuted(positions, card.samples, key=shards.order_key(card.seed, epoch))
            yield Order(
                indices=indices,
                ranges=ranges_of(card, epoch, begin + part.start, begin + part.stop),
                share=len(positions) / (end - begin),
            )


def group_batches(card: DatasetCard, workers: int) -> list[tuple[int, int]]:
    """Where each batch of the group begins and ends, in positions of an epoch's order."""
    used = card.samples_used
    if used < workers:
        raise errors.BadInput(f"{used} samples cannot be shared by {workers} workers: use fewer workers")
    ends = [*range(card.batch_size, used, card.batch_size), used]
    if len(ends) > 1 and ends[-1] - ends[-2] < workers:
        del ends[-2]
    if ends[0] < workers:
        raise errors.BadInput(
            f"batch_size={card.batch_size} is the whole group's batch and cannot be shared by {workers} workers: "
            'raise it, or pass scaling="worker_batch" so that each worker has a batch of that size'
        )
    return list(zip([0, *ends[:-1]], ends, strict=True))


def ranges_of(card: DatasetCard, epoch: int, begin: int, end: int) -> tuple[SampleRange, ...]:
    """Identities of positions begin to end of an epoch: one range for each shard that they touch."""
    found = []
    while begin < end:
        shard, first = divmod(begin, card.shard_size)
        count = min(end - begin, card.shard_size - first)
        found.append(SampleRange(epoch=epoch, shard=epoch * card.shards + shard, first=first, count=count))
        begin += count
    return tuple(found)
