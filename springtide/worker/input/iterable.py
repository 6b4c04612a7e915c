"""Share an IterableDataset by leases: each worker reads all of it and trains its share.

In: leases in worker/link/lease_tracker.py, and mini-batches from data/source.py. Out: batches for the loop, like
batches.read. Next: worker/step/step.py.

The n-th mini-batch of an iteration has position n on every worker, counted as if every batch were full. If every
iteration yields the same samples in the same order, each sample is trained once. Otherwise some samples may be trained
twice or never, and Springtide cannot detect it. The log says so once. A worker reads and drops the mini-batches that it
skips. An error of the data set ends the loop, because no worker can read past it.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from springtide.data.source import SampleSource, as_batch
from springtide.domain.data.samples import DatasetCard
from springtide.worker.input import batch_plan, lease_prefetch
from springtide.worker.input.accumulation import parts_of
from springtide.worker.input.batch_plan import BatchOrder
from springtide.worker.input.read_batch import PAUSED, ReadBatch
from springtide.worker.link import master_link

log = logging.getLogger(__name__)
SHARD_BATCHES = 16  # few, because the worker with the next shard must read past this one
MOST_SHARDS = 2**20  # shard numbers reserved for a pass of unknown length; shard numbers have 32 bits


class IterableReader:
    """Reader of mini-batches by position, with one iteration at a time. A position before the current one starts a new
    iteration.
    """

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._items: Iterator[Any] = iter(())
        self._place = -1
        self.length: int | None = None
        """Number of mini-batches of an iteration, once its end was reached."""

    def read(self, place: int) -> Any:
        if self.length is not None and place >= self.length:
            return None
        if self._place < 0 or place < self._place:
            self._items, self._place = iter(self._source.stream()), 0
        while True:
            try:
                item = next(self._items)
            except StopIteration:
                self.length, self._place = self._place, -1
                return None
            self._place += 1
            if self._place > place:
                return item


def leased(
    source: SampleSource,
    card: DatasetCard,
    epochs: range,
    to_master: master_link.MasterLink,
    *,
    alone: bool = False,
    parts: int = 1,
) -> Iterator[ReadBatch]:
    """Yield mini-batches at leased positions, epoch after epoch; `parts` mini-batches form one batch of the card."""
    if not alone:
        say_once()
    for epoch in epochs:
        yield from one_epoch(source, endless(card, epoch), to_master, alone=alone, parts=parts)


@functools.cache
def say_once() -> None:
    log.warning(
        "an IterableDataset: samples are trained exactly once only if every iteration over it gives the same samples "
        "in the same order, which is not checked. Every worker reads all of it and trains its share"
    )


def endless(card: DatasetCard, epoch: int) -> DatasetCard:
    """Return a card for one epoch of unknown length, with as many samples as shard numbers allow."""
    samples = MOST_SHARDS * SHARD_BATCHES * card.batch_size
    return dataclasses.replace(
        card, samples=samples, epochs=1, first_epoch=epoch, shuffle=False, endless=True, shard_batches=SHARD_BATCHES
    )


def one_epoch(
    source: SampleSource, card: DatasetCard, to_master: master_link.MasterLink, *, alone: bool, parts: int = 1
) -> Iterator[ReadBatch]:
    tracker, reader = to_master.leases.tracker, IterableReader(source)
    asked: lease_prefetch.LeaseSource = (
        lease_prefetch.DirectLeases(to_master.leases.lease)
        if alone
        else lease_prefetch.PrefetchedLeases(to_master.leases.lease, tracker)
    )
    for order in batch_plan.leased(asked, tracker, card, draining=lambda: to_master.draining):
        if order.claim is None:
            yield PAUSED
            continue
        place = int(order.indices[0]) // card.batch_size
        found = [one for one in (reader.read(place * parts + part) for part in range(parts)) if one is not None]
        if not found:
            assert reader.length is not None
            tracker.end_at(-(-reader.length // parts) * card.batch_size)
        elif tracker.holds(order.claim):
            # the last sum of an iteration may lack parts, on all workers alike; its identity covers all parts
            named = parts_of(order, card.batch_size // parts)
            whole = [*named[: len(found) - 1], merged(named[len(found) - 1 :])]
            yield from (ReadBatch(part, as_batch(one)) for part, one in zip(whole, found, strict=True))


def merged(parts: Sequence[BatchOrder]) -> BatchOrder:
    """Return the first of these parts with a range that covers all of them."""
    (first,), (last,) = parts[0].ranges, parts[-1].ranges
    whole = dataclasses.replace(first, count=last.first + last.count - first.first)
    return dataclasses.replace(parts[0], ranges=(whole,), last=True)
