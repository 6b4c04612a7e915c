"""Batches of an IterableDataset. Each worker reads the whole data set and trains its share, by leases or in rounds
of a group.

Async (`leased`): the n-th mini-batch of an iteration has position n on every worker, and leases cover positions. Bsp
(`IterableRounds`): every rank reads rounds that have one mini-batch per rank. A schedule may distribute a round's
samples differently. In both modes, every iteration must yield the same samples in the same order. Springtide cannot
verify this rule.
"""

import dataclasses
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import default_collate

from springtide import errors
from springtide.data.source import CountedBatch, SampleSource, as_batch
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.worker.bsp.group import BspGroup
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input import batch_plan, lease_prefetch
from springtide.worker.input.batch_plan import PAUSE, PAUSED, BatchOrder, Indices, ReadBatch
from springtide.worker.input.feeds import BatchReadahead, parts_of
from springtide.worker.link import master_link

log = logging.getLogger(__name__)
SHARD_BATCHES = 16  # batches per shard; few, because a worker must read past all earlier shards to reach its own
MOST_SHARDS = 2**20  # number of shard numbers to reserve for a pass of unknown length; shard numbers have 32 bits
KEPT = 4  # number of recent rounds to keep: the current round, the next, the one that is being read, and one in reserve


class IterableReader:
    """Reads mini-batches by position. For a position before the current one, it starts a new iteration."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._items: Iterator[CountedBatch] = iter(())
        self._place = -1
        self._samples = 0
        self.length: int | None = None
        """Number of mini-batches of an iteration, once its end was reached."""
        self.samples = 0
        """Number of samples of an iteration, once its end was reached."""

    def read(self, place: int) -> Any:
        if self.length is not None and place >= self.length:
            return None
        if self._place < 0 or place < self._place:
            self._items, self._place, self._samples = iter(self._source.stream()), 0, 0
        for samples, batch in self._items:
            self._place, self._samples = self._place + 1, self._samples + samples
            if self._place > place:
                return batch
        self.length, self.samples, self._place = self._place, self._samples, -1
        return None


def leased(
    source: SampleSource,
    card: DatasetCard,
    epochs: range,
    to_master: master_link.MasterLink,
    *,
    alone: bool = False,
    parts: int = 1,
) -> Iterator[ReadBatch]:
    """Yield the mini-batches at leased positions, epoch after epoch. A batch of the card consists of `parts`
    mini-batches."""
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
        found = [
            samples for samples in (reader.read(place * parts + part) for part in range(parts)) if samples is not None
        ]
        if not found:
            assert reader.length is not None
            positions = -(-reader.length // parts) * card.batch_size
            tracker.end_at(positions, short=positions - reader.samples)
        elif tracker.holds(order.claim):
            # on every worker, the last accumulated batch of an iteration may have fewer parts; its identity still
            # covers all parts
            named = parts_of(order, card.batch_size // parts)
            whole = [*named[: len(found) - 1], merged(named[len(found) - 1 :])]
            yield from (ReadBatch(part, as_batch(samples)) for part, samples in zip(whole, found, strict=True))


def merged(parts: Sequence[BatchOrder]) -> BatchOrder:
    (first,), (last,) = parts[0].ranges, parts[-1].ranges
    whole = dataclasses.replace(first, count=last.first + last.count - first.first)
    return dataclasses.replace(parts[0], ranges=(whole,), last=True)


class RecentRound(NamedTuple):
    """A recent round, with the number of its first sample. Samples are numbered through all passes."""

    first: int
    samples: list[Any]


class IterableRounds:
    """Rounds of all passes of one `job.prepare`."""

    def __init__(self, source: SampleSource, *, rank: int, workers: int) -> None:
        self._source, self._rank, self._workers = source, rank, workers
        self._collate: Callable[[list[Any]], Any] = source.collate or default_collate
        self._recent: deque[RecentRound] = deque(maxlen=KEPT)
        self._number = 0
        self._late: bool | None = None

    def shared(
        self, sharing: CacheCoordinator | None, group: BspGroup | None, epochs: range, *, steps: int
    ) -> Iterator[ReadBatch]:
        """Yield the rounds of these passes. `steps`: number of steps that the group has trained.

        A rank that was added after the first step gets none, because it cannot know the group's position in the data.
        """
        if group is not None and self._late is None:
            # the group may have another size than the job had at its start
            self._rank, self._workers, self._late = group.place.rank, group.place.workers, steps > 0
            if self._late:
                log.warning(
                    "this worker joined after step %d of a bsp group over an IterableDataset, and trains nothing: "
                    "such a group keeps its size",
                    steps,
                )
        if self._late:
            return iter(())
        if sharing is None or group is None:
            return self.read(epochs)
        allotting = sharing.allotting
        sharing.restart(group.place)
        rounds = self.read(epochs, wholes=lambda: allotting.wholes)
        return iter(BatchReadahead(rounds, allotting.make_ready, allotting.review, sharing.read))

    def read(self, epochs: range, *, wholes: Callable[[], bool] | None = None) -> Iterator[ReadBatch]:
        """Yield round after round. An incomplete last round is left out, because every rank needs a batch.

        If a schedule may allocate the samples, `wholes` returns whether whole rounds are needed.
        """
        for epoch in epochs:
            first = 0
            parts: list[Any] = []
            for part in self._source.stream() if wholes is None else self._source.items():
                parts.append(part)
                if len(parts) == self._workers:
                    if wholes is None:
                        order = self._order(epoch, first, [counted.samples for counted in parts])
                        yield ReadBatch(order, as_batch(parts[self._rank].batch))
                    else:
                        order = self._order(epoch, first, [len(samples) for samples in parts])
                        yield self._numbered(order, parts, wholes)
                    first += order.samples
                    parts = []

    def fetch(self, samples: Indices) -> Any:
        for recent in list(self._recent):
            places = samples - recent.first
            if 0 <= places[0] < len(recent.samples):
                return as_batch(self._collate([recent.samples[place] for place in places.tolist()]))
        raise errors.JobFailed(f"sample {samples[0]} of the pass is no longer in memory")

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        return self.fetch(samples[places])

    def _order(self, epoch: int, first: int, counts: Sequence[int]) -> BatchOrder:
        """Return the order of this rank's mini-batch in a round. `counts` has the number of samples of each mini-batch
        in the round."""
        mine = counts[self._rank]
        identity = SampleRange(epoch=epoch, shard=epoch * self._workers + self._rank, first=first, count=mine)
        return BatchOrder(indices=PAUSE.indices, ranges=(identity,), share=mine / max(1, sum(counts)))

    def _numbered(self, order: BatchOrder, parts: Sequence[list[Any]], wholes: Callable[[], bool]) -> ReadBatch:
        """Return a round whose samples a schedule may allocate. If the mini-batches of the round differ in size, return
        only this rank's mini-batch.
        """
        size = len(parts[self._rank])
        if not size or any(len(part) != size for part in parts):
            return ReadBatch(order, as_batch(self._collate(parts[self._rank])))
        samples = [sample for part in parts for sample in part]
        numbers = self._number + np.arange(len(samples))
        # append the round before the batch is passed on, because `fetch` may need the round
        self._recent.append(RecentRound(self._number, samples))
        self._number += len(samples)
        places = np.arange(self._rank * size, (self._rank + 1) * size)
        order = dataclasses.replace(order, indices=numbers[places], whole=numbers, places=places)
        whole = wholes()
        return ReadBatch(order, as_batch(self._collate(samples if whole else parts[self._rank])), whole=whole)
