"""Batches of an IterableDataset: each worker reads the whole data set and trains its share, by leases or in rounds of a
group.

Async (`leased`): the n-th mini-batch of an iteration has position n on every worker, and leases cover positions. Bsp
(`IterableRounds`): every rank reads rounds of one mini-batch per rank; a schedule may distribute a round's samples
differently. Both modes need every iteration to yield the same samples in the same order, which Springtide cannot check.
"""

import dataclasses
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from springtide import errors
from springtide.data.source import SampleSource, as_batch
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.worker.bsp.group import BspGroup
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input import batch_plan, batch_rows, lease_prefetch
from springtide.worker.input.batch_plan import PAUSE, PAUSED, BatchOrder, Indices, ReadBatch
from springtide.worker.input.batch_rows import NotRows, joined, samples_in
from springtide.worker.input.feeds import BatchReadahead, parts_of
from springtide.worker.link import master_link

log = logging.getLogger(__name__)
SHARD_BATCHES = 16  # few, because a worker must read past all shards before its own
MOST_SHARDS = 2**20  # shard numbers reserved for a pass of unknown length; shard numbers have 32 bits
KEPT = 4  # number of recent rounds that are kept: the current, the next, the one being read, and one spare
NOT_BY_ROWS = (
    "mini-batches of this IterableDataset are not a row a sample (values that are no tensors), and it cannot be asked "
    "for samples again: each rank trains its own mini-batch of a round"
)


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


class DataRound(Protocol):
    """One mini-batch per rank, from which any other subset of samples can be taken."""

    def part(self, rank: int) -> Any: ...

    @property
    def whole(self) -> Any: ...

    def taken(self, places: Indices) -> Any: ...


class ByRows:
    """Round of mini-batches from torch's own collate, joined and split by rows."""

    def __init__(self, parts: Sequence[Any], size: int) -> None:
        self.parts, self.size, self.whole = parts, size, joined(parts, size)

    def part(self, rank: int) -> Any:
        return self.parts[rank]

    def taken(self, places: Indices) -> Any:
        rank, total = int(places[0]) // self.size, self.size * len(self.parts)
        if np.array_equal(places, np.arange(rank * self.size, (rank + 1) * self.size)):
            return self.parts[rank]
        return self.whole if len(places) == total else batch_rows.rows_of(self.whole, total, torch.from_numpy(places))


class BySamples:
    """Round of samples that the user's `collate_fn` turns into batches, in any combination."""

    def __init__(self, parts: Sequence[list[Any]], collate: Callable[[list[Any]], Any]) -> None:
        self.parts, self._collate = parts, collate
        self._samples = [sample for part in parts for sample in part]

    def part(self, rank: int) -> Any:
        return self._collate(self.parts[rank])

    @property
    def whole(self) -> Any:
        return self._collate(self._samples)

    def taken(self, places: Indices) -> Any:
        return self._collate([self._samples[place] for place in places.tolist()])


class RecentRound(NamedTuple):
    """Recent round with the numbers of its samples, which count through the pass."""

    first: int
    samples: int
    round_: DataRound


class IterableRounds:
    """Rounds of one pass."""

    def __init__(self, source: SampleSource, *, rank: int, workers: int) -> None:
        self._source, self._rank, self._workers = source, rank, workers
        self.wholes: Callable[[], bool] | None = None
        """Function that returns whether rounds are needed whole, if a schedule may allocate them; else None."""
        self._recent: deque[RecentRound] = deque(maxlen=KEPT)
        self._number = 0
        self._said = False

    @property
    def _own(self) -> Callable[[list[Any]], Any] | None:
        """Return the user's `collate_fn` if samples are read uncollated, in a group that may allocate them."""
        return None if self.wholes is None else self._source.collate

    @property
    def again(self) -> bool:
        return self._own is not None

    def shared(self, sharing: CacheCoordinator | None, group: BspGroup | None, epochs: range) -> Iterator[ReadBatch]:
        if sharing is None or group is None:
            return self.read(epochs)
        allotting = sharing.allotting
        allotting.picker, self.wholes = self, lambda: allotting.wholes
        sharing.restart(group.place)
        return iter(BatchReadahead(self.read(epochs), allotting.make_ready, allotting.review, sharing.read))

    def read(self, epochs: range) -> Iterator[ReadBatch]:
        """Yield round after round. An incomplete last round is left out, because every rank needs a batch."""
        for epoch in epochs:
            first = 0
            round_: list[Any] = []
            for part in self._source.stream() if self._own is None else self._source.items():
                round_.append(part)
                if len(round_) == self._workers:
                    yield (handed := self._made(tuple(round_), epoch, first))
                    first += handed.order.samples
                    round_.clear()

    def fetch(self, samples: Indices) -> Any:
        for recent in list(self._recent):
            places = samples - recent.first
            if 0 <= places[0] < recent.samples:
                return as_batch(recent.round_.taken(places))
        raise errors.JobFailed(f"sample {samples[0]} of the pass is not at hand any more")

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        return self.fetch(samples[places])

    def _made(self, parts: tuple[Any, ...], epoch: int, first: int) -> ReadBatch:
        own, rank = self._own, self._rank
        counts = [samples_in(one) if own is None else len(one) for one in parts]
        mine = counts[rank]
        identity = SampleRange(epoch=epoch, shard=epoch * self._workers + rank, first=first, count=mine)
        order = BatchOrder(indices=PAUSE.indices, ranges=(identity,), share=mine / max(1, sum(counts)))
        round_ = None if self.wholes is None else self._round(parts, counts)
        if round_ is None or self.wholes is None:
            return ReadBatch(order, as_batch(parts[rank] if own is None else own(parts[rank])))
        numbers = self._number + np.arange(sum(counts))
        # append before the yield, because `fetch` may need the round
        self._recent.append(RecentRound(self._number, sum(counts), round_))
        self._number += sum(counts)
        places = np.arange(rank * mine, (rank + 1) * mine)
        order = dataclasses.replace(order, indices=numbers[places], whole=numbers, places=places)
        whole = self.wholes()
        return ReadBatch(order, as_batch(round_.whole if whole else round_.part(rank)), whole=whole)

    def _round(self, parts: tuple[Any, ...], counts: Sequence[int]) -> DataRound | None:
        """Return a round that a schedule may allocate; None, on all ranks, if sizes differ or rows are not samples."""
        if len(set(counts)) > 1 or not counts[0]:
            return None
        if self._own is not None:
            return BySamples(parts, self._own)
        try:
            return ByRows(parts, counts[0])
        except NotRows:
            if not self._said:
                log.warning("samples are not scheduled, and no rows kept: %s", NOT_BY_ROWS)
            self._said = True
            return None
