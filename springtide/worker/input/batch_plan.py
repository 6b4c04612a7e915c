"""Turns leases into orders for batches: sample indices with an identity that does not depend on the worker.

In: the leases in worker/link/lease_tracker.py and, in a bsp group, the rank. Out: a `BatchOrder` per batch, and the
`ReadBatch` that carries the order with its samples to the loop. Next: data/source.py reads, batches.py yields.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data import shards
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.embedding.lookup.lookup import Crossed
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import Regroup
from springtide.worker.input.lease_prefetch import DirectLeases
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """One mini-batch to read and train. An order without ranges is a pause, which means that no batch is available at
    the moment."""

    indices: Indices
    ranges: tuple[SampleRange, ...] = ()
    share: float = 1.0
    """This rank's share of the group's batch. A bsp group weights the rank's gradient with this share."""
    claim: BatchClaim | None = None
    """Claim on the lease, including the parts of the other ranks."""
    whole: Indices | None = None
    """Indices of all samples in the group's batch, if every rank knows them."""
    places: Indices | None = None
    """Positions of the samples in the group's batch, in ascending order."""
    regroups: int | None = None
    """Generation of a bsp group that must form again before the next batch. An order with a generation has no batch."""
    borrowed: bool = False
    """True if this rank borrows one sample of another rank, because all its own samples are unreadable. The gradient of
    the borrowed sample has weight 0.
    """
    last: bool = True
    """True if this order completes the step's batch; False if more parts follow."""

    @property
    def samples(self) -> int:
        return sum(part.count for part in self.ranges)

    @property
    def epoch(self) -> int:
        return self.ranges[0].epoch


PAUSE = BatchOrder(indices=np.empty(0, dtype=np.int64))


def leased(
    leases: DirectLeases,
    tracker: LeaseTracker,
    card: DatasetCard,
    *,
    groups: shards.RowGroups | None = None,
    unit: int = 1,
    each: int | None = None,
    place: Callable[[], tuple[int, int, int]] | None = None,
    draining: Callable[[], bool] = lambda: False,
) -> Iterator[BatchOrder]:
    """Yield batches of leased shards until the pass is over for all workers, or the job is `draining`.

    In a bsp group every rank leases the same shards and takes its part of each batch, in whole `unit`s. `place` returns
    the current rank, size and generation. With weak scaling every rank gets `each` samples. A PAUSE means that no lease
    is available at the moment. A lease may become available when another worker returns one, or after this worker has
    reported its last batches as trained.
    """
    tracker.begin_pass(card)
    rank, group, generation = 0, 1, 0
    read: tuple[Grant, Indices] | None = None
    try:
        while not draining():
            if place is not None:
                rank, group, generation = place()
            claimed = tracker.claim(card.batch_size if each is None else each * group, group=group * unit)
            if claimed is not None:
                grant, claim = claimed
                if read is None or read[0] is not grant:
                    part: Any = {"first": grant.first, "end": grant.end}
                    read = grant, shards.indices(card, epoch=grant.epoch, index=grant.nth, groups=groups, **part)
                leases.keep_up(card, claim.end - claim.begin)
                size = shards.size(card, grant.nth)
                # number of samples in the shard, which is part of the identity of a batch
                known = size if size < 2**32 else 0
                yield order_of(grant, claim, read[1], rank, group, unit, shard_samples=known)
                continue
            answer = leases.more(card)
            if isinstance(answer, messages.DataEnd) and (card.in_step or not tracker.is_busy):
                return
            if isinstance(answer, Regroup):
                yield BatchOrder(indices=PAUSE.indices, regroups=generation)
            elif not isinstance(answer, messages.LeaseReply):
                yield PAUSE
    finally:
        leases.close()


def order_of(
    grant: Grant, claim: BatchClaim, indices: Indices, rank: int, group: int, unit: int = 1, *, shard_samples: int = 0
) -> BatchOrder:
    """Return this rank's part of a batch. `indices` has the indices of the whole lease."""
    whole = claim.end - claim.begin
    part = shards.rank_part(whole, rank=rank, workers=group, unit=unit)
    count, first = part.stop - part.start, claim.begin + part.start
    return BatchOrder(
        indices=indices[first - grant.first : first - grant.first + count],
        ranges=(
            SampleRange(epoch=grant.epoch, shard=grant.shard, first=first, count=count, shard_samples=shard_samples),
        ),
        share=count / whole,
        claim=claim,
        whole=indices[claim.begin - grant.first : claim.end - grant.first],
        places=np.arange(part.start, part.stop),
    )


def allotted(order: BatchOrder, chosen: Indices) -> BatchOrder:
    """Return the order of a rank that trains these samples instead of a contiguous run. `chosen` has the positions of
    these samples in the group's batch.

    Servers identify the step of a group by its number, so only the number of samples in a rank's range matters.
    """
    assert order.whole is not None
    ranges = tuple(dataclasses.replace(part, count=len(chosen)) for part in order.ranges)
    return dataclasses.replace(
        order, indices=order.whole[chosen], ranges=ranges, share=len(chosen) / len(order.whole), places=chosen
    )


def without(order: BatchOrder, kept: Indices, *, whole: bool, borrowed: bool = False) -> BatchOrder:
    """Restrict an order to these samples, and keep its identity. With `whole`, positions are positions in the group's
    batch."""
    if whole:
        assert order.whole is not None
        return dataclasses.replace(order, whole=order.whole[kept])
    places = None if order.places is None else order.places[kept]
    return dataclasses.replace(order, indices=order.indices[kept], places=places, borrowed=borrowed)


def count_batches(samples: int, batch_size: int, *, workers: int = 1, in_step: bool = False, unit: int = 1) -> int:
    """Return the number of batches of an epoch for a worker.

    The number is exact for one worker, and for a bsp group (`in_step`) whose workers take a part of every batch. If
    workers share the batches, or the `unit`s of each batch, the number is a fair share, rounded up.
    """
    full, rest = divmod(samples, batch_size)
    if not in_step:
        return -(-(full + bool(rest)) // workers)
    count = full + (rest >= workers * unit or (rest > 0 and not full))
    return count if unit == 1 else count * -(-batch_size // (unit * workers))


def fit_to_group(card: DatasetCard, group: int) -> DatasetCard:
    """Return a card of which every batch can be split over a bsp group, because no shard is smaller than the group."""
    if not card.samples_used:
        raise errors.BadInput(
            f"drop_last=True leaves nothing to train: {card.samples} samples do not fill one batch of "
            f"{card.batch_size}. Lower batch_size, or leave drop_last out"
        )
    if min(card.batch_size, card.samples_used) < group:
        raise errors.BadInput(
            f"a batch of {min(card.batch_size, card.samples_used)} samples cannot be shared by {group} workers. In bsp "
            'mode batch_size is the whole group\'s: raise it, or pass scaling="worker_batch" for a batch per worker'
        )
    full, rest = divmod(card.samples_used, card.batch_size)
    if 0 < rest < group:
        # the last shard must have at least one full batch, to which a small remainder can be added
        fitting = next(size for size in itertools.count(card.shard_batches) if full % size)
        return dataclasses.replace(card, shard_batches=fitting)
    return card


class Fed(NamedTuple):
    """Batch from a queue, made by this worker or by a data worker."""

    batch: Any
    crossing: tuple[Any, ...] | None = None
    """Results of the part of forward() that moved to data workers. None without such results; then the user's own
    forward() runs.
    """
    check: bool = False
    """True if this worker must compare these results with the results of its own forward()."""


@dataclass(frozen=True, slots=True)
class AllottedBatch:
    """Schedule of a batch, kept together with this rank's part of the batch."""

    whole: Any
    """The group's batch, which is divided differently if the schedule becomes invalid."""
    made: Any
    """`_native.Scheduled`: the step, the rank of each sample, and the cache plan of each rank."""
    digest: int
    """Digest of the scheduled ids and ranks."""
    turn: int
    """Number of the schedule among all schedules of this process."""


@dataclass(frozen=True, slots=True)
class BatchUnit:
    """A unit of a batch: samples whose gradients are summed together."""

    place: int
    """Index of the unit in the group's batch."""
    share: float
    """Share of the group's batch that the unit has, with which the unit's gradients are weighted."""
    first: bool
    last: bool
    """True if this is the last unit of this rank's part."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch together with its order."""

    order: BatchOrder
    batch: Any
    whole: bool = False
    """True if the batch is the whole group's batch instead of this rank's part."""
    plan: AllottedBatch | None = None
    """Schedule of the batch; None if it is not scheduled."""
    crossing: tuple[Any, ...] | None = None
    """Results of the moved part of forward() that data workers computed for this batch."""
    check: bool = False
    """True if this worker must compare these results with the results of its own forward()."""
    unit: BatchUnit | None = None
    """Unit of this rank's part, if gradients are summed in the order of the batch. `order` is then the order of the
    whole part."""
    empty: bool = False
    """True if no sample of the batch can be trained. The loop does not get such a batch; the servers only get its
    identity."""
    following: "Callable[[], ReadBatch | None]" = lambda: None
    """Function that waits for the next batch, if the worker reads batches ahead; None if no batch follows."""

    @property
    def seen(self) -> Any:
        return self.batch if self.crossing is None else Crossed(self.batch, self.crossing)


PAUSED = ReadBatch(PAUSE, None)
"""A pause that may be the end of the batches. The step pushes all batches that the loop has got so far, and waits for
the push."""
RESTING = ReadBatch(PAUSE, None)
"""A pause after which more batches follow. A loop that accumulates gradients continues its sum."""
