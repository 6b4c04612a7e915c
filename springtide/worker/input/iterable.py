"""Batches of an IterableDataset: each worker reads the whole data set and trains its share, by leases or in rounds of a
group.

Async (`leased`): the n-th mini-batch of an iteration has position n on every worker, and leases cover positions. Bsp
(`rounds`): every rank reads rounds with one mini-batch per rank. Both modes need every iteration to yield the same
samples in the same order, which Springtide cannot check.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from springtide.data.source import SampleSource, as_batch
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.worker.input import batch_plan, lease_prefetch
from springtide.worker.input.batch_plan import PAUSE, PAUSED, BatchOrder, ReadBatch
from springtide.worker.input.batch_rows import samples_in
from springtide.worker.input.feeds import parts_of
from springtide.worker.link import master_link

log = logging.getLogger(__name__)
SHARD_BATCHES = 16  # few, because a worker must read past all shards before its own
MOST_SHARDS = 2**20  # shard numbers reserved for a pass of unknown length; shard numbers have 32 bits


class IterableReader:
    """Reader of mini-batches by position; a position before the current position starts a new iteration."""

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
    leases = lease_prefetch.open_leases(to_master.leases, direct=alone)
    for order in batch_plan.leased(leases, tracker, card, draining=lambda: to_master.draining):
        if order.claim is None:
            yield PAUSED
            continue
        place = int(order.indices[0]) // card.batch_size
        found = [one for one in (reader.read(place * parts + part) for part in range(parts)) if one is not None]
        if not found:
            assert reader.length is not None
            tracker.end_at(-(-reader.length // parts) * card.batch_size)
        elif tracker.holds(order.claim):
            # the last accumulated batch of an iteration may have fewer parts, on every worker; its identity still
            # covers all parts
            named = parts_of(order, card.batch_size // parts)
            whole = [*named[: len(found) - 1], merged(named[len(found) - 1 :])]
            yield from (ReadBatch(part, as_batch(one)) for part, one in zip(whole, found, strict=True))


def merged(parts: Sequence[BatchOrder]) -> BatchOrder:
    (first,), (last,) = parts[0].ranges, parts[-1].ranges
    whole = dataclasses.replace(first, count=last.first + last.count - first.first)
    return dataclasses.replace(parts[0], ranges=(whole,), last=True)


def rounds(source: SampleSource, epochs: range, *, rank: int, workers: int) -> Iterator[ReadBatch]:
    """Yield this rank's mini-batch of each round. An incomplete last round is left out: every rank needs a batch."""
    for epoch in epochs:
        first = 0
        parts: list[Any] = []
        for part in source.stream():
            parts.append(part)
            if len(parts) == workers:
                counts = [samples_in(one) for one in parts]
                identity = SampleRange(epoch=epoch, shard=epoch * workers + rank, first=first, count=counts[rank])
                share = counts[rank] / max(1, sum(counts))
                order = BatchOrder(indices=PAUSE.indices, ranges=(identity,), share=share)
                yield ReadBatch(order, as_batch(parts[rank]))
                first += counts[rank]
                parts = []
