"""Provides batches for the loop: reads the samples of orders, in parts for gradient accumulation, or one batch
ahead.

In: the orders of batch_plan.py. Out: `ReadBatch`es for batches.py. With gradient accumulation, all mini-batches of
one sum are leased and pushed as one batch. With read-ahead, a thread reads and prepares the next batch while the
loop trains.
"""

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from springtide import errors
from springtide.data.source import SampleSource, UnreadableBatch, as_batch
from springtide.dataworker.feed.connections import WantedBatch
from springtide.domain.core import validation
from springtide.domain.data.data_workers import BatchName
from springtide.worker.input.batch_plan import PAUSED, BatchOrder, Fed, ReadBatch, without
from springtide.worker.input.reader import BatchReader, BatchRest
from springtide.worker.link.lease_tracker import LeaseTracker

log = logging.getLogger(__name__)


class BatchReadahead:
    """Iterable over the prepared batches; `close` ends the thread and the feed."""

    def __init__(
        self,
        feed: Iterator[ReadBatch],
        make_ready: Callable[[ReadBatch], ReadBatch],
        review: Callable[[ReadBatch], ReadBatch] = lambda handed: handed,
        timed: Callable[[float], None] = lambda seconds: None,
        *,
        pauses: bool = False,
    ) -> None:
        """Create the read-ahead. `make_ready` runs in its own thread, and `review` in the loop's thread. `timed` is
        called with the time of each read."""
        self._feed, self._make_ready, self._review, self._timed = feed, make_ready, review, timed
        self._pauses = pauses
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="springtide-ahead")
        self._next: Future[ReadBatch | None] | None = None
        self._closing = False

    def __iter__(self) -> Iterator[ReadBatch]:
        try:
            while (now := self._take()) is not None:
                if now.order.regroups is None and now is not PAUSED:
                    now = self._review(now)
                    coming = self._next = self._thread.submit(self._read)
                    now = replace(now, following=lambda coming=coming: _batch(coming.result()))  # type: ignore[misc]
                yield now
        finally:
            self.close()

    def close(self) -> None:
        """Wait for the thread, which checks for the end at every batch and pause."""
        self._closing = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        close = getattr(self._feed, "close", None)
        if close is not None:
            close()

    def _take(self) -> ReadBatch | None:
        if self._next is None:  # at the start, and again after the group has changed
            self._next = self._thread.submit(self._read)
        coming, self._next = self._next, None
        return coming.result()

    def _read(self) -> ReadBatch | None:
        while not self._closing:
            began = time.perf_counter()
            handed = next(self._feed, None)
            self._timed(time.perf_counter() - began)
            if handed is PAUSED:
                if self._pauses:
                    return handed
            else:
                return handed if handed is None or handed.order.regroups is not None else self._make_ready(handed)
        return None


def _batch(handed: ReadBatch | None) -> ReadBatch | None:
    return None if handed is None or handed is PAUSED or handed.order.regroups is not None else handed


def check(accumulate: int, *, in_step: bool) -> None:
    validation.number(accumulate, "accumulate", "a whole number of batches a step, 1 or more", least=1)
    if accumulate > 1 and in_step:
        raise errors.BadInput(
            f'accumulate={accumulate} with sync="bsp": a group takes its steps together, and its loop may sum '
            "gradients freely. Leave accumulate out, and call optimizer.step() after as many batches as you want"
        )


def split(orders: Iterable[BatchOrder], size: int) -> Iterator[BatchOrder]:
    """Split each order into parts of `size` samples. An order without a batch stays unchanged."""
    for order in orders:
        yield from parts_of(order, size)


def parts_of(order: BatchOrder, size: int) -> list[BatchOrder]:
    """Split one order. Each part has its own range, and all parts share the claim of the batch."""
    if not order.ranges:
        return [order]
    (whole,) = order.ranges
    firsts = range(0, whole.count, size)
    return [
        dataclasses.replace(
            order,
            indices=order.indices[first : first + size],
            whole=None,
            ranges=(dataclasses.replace(whole, first=whole.first + first, count=min(size, whole.count - first)),),
            last=first == firsts[-1],
        )
        for first in firsts
    ]


def complete(feed: Iterable[ReadBatch]) -> Iterator[ReadBatch]:
    waiting: list[ReadBatch] = []
    for handed in feed:
        if waiting and handed.order.claim != waiting[0].order.claim:
            waiting = []
        if handed.batch is None and not handed.empty:
            yield handed
            continue
        waiting.append(handed)
        if handed.order.last:
            first = waiting[0].order
            whole = first.samples if first.claim is None else first.claim.end - first.claim.begin
            if sum(part.order.samples for part in waiting) == whole:
                yield from without_empty(waiting)
            waiting = []


def without_empty(parts: Sequence[ReadBatch]) -> list[ReadBatch]:
    """Return the parts for the loop. If a part has no sample that can be trained, a neighbouring part takes over its
    range."""
    kept = [part for part in parts if not part.empty] or list(parts[:1])
    begins = [part.order.ranges[0].first for part in (parts[0], *kept[1:])]
    ends = [*begins[1:], begins[0] + sum(part.order.samples for part in parts)]
    named = []
    for part, begin, end in zip(kept, begins, ends, strict=True):
        own = dataclasses.replace(part.order.ranges[0], first=begin, count=end - begin)
        order = dataclasses.replace(part.order, ranges=(own,), last=part is kept[-1])
        named.append(dataclasses.replace(part, order=order))
    return named


def read(
    source: SampleSource | BatchReader,
    orders: Iterable[BatchOrder],
    tracker: LeaseTracker | None = None,
    *,
    wholes: Callable[[], bool] = lambda: False,
    draining: Callable[[], bool] = lambda: False,
    plain: bool = True,
) -> Iterator[ReadBatch]:
    """Read the batches that the orders name. Readers in other processes run ahead, so orders queue up here.

    With `tracker`, an unreadable batch goes to another worker, and a batch whose lease was revoked is skipped. If the
    job is `draining`, batches that were read ahead are dropped. Without a tracker, an error of the reader ends the
    loop. While `wholes` returns True, the batches of the whole group are read. If not `plain`, every rank must train at
    least one sample.
    """
    under_way: deque[tuple[BatchOrder, bool]] = deque()

    def wanted() -> Iterator[WantedBatch]:
        for order in orders:
            whole = order.whole is not None and wholes()
            under_way.append((order, whole))
            yield _wanted(order, whole=whole)

    for collated in _made(source, wanted(), tolerant=tracker is not None):
        order, whole = under_way.popleft()
        if tracker is not None and draining():
            return
        if isinstance(collated, UnreadableBatch):
            assert tracker is not None and order.claim is not None
            at = order.ranges[0]
            log.warning(
                "this worker cannot read shard %d of epoch %d, so others try it: %s", at.shard, at.epoch, collated.error
            )
            tracker.fail(order.claim, collated.error)
        elif not order.ranges:
            yield PAUSED if order.regroups is None else ReadBatch(order, None)
        elif tracker is None or order.claim is None or tracker.holds(order.claim):
            if isinstance(collated, BatchRest):
                yield _of_rest(collated, order, whole=whole, plain=plain)
                continue
            came = collated if isinstance(collated, Fed) else Fed(collated)
            yield ReadBatch(order, as_batch(came.batch), whole, crossing=came.crossing, check=came.check)


def _of_rest(rest: BatchRest, order: BatchOrder, *, whole: bool, plain: bool) -> ReadBatch:
    """Return a batch with some samples left out. If no sample is left, the loop does not get the batch."""
    if not plain and (rest.batch is None or rest.borrowed):
        raise errors.UnreadableSample(
            f"a rank cannot read any of its samples of a batch (shard {order.ranges[0].shard}), but every rank needs "
            "a sample when gradients are summed in batch order"
        )
    order = without(order, rest.kept, whole=whole, borrowed=rest.borrowed)
    return ReadBatch(order, as_batch(rest.batch), whole, empty=rest.batch is None)


def _made(source: SampleSource | BatchReader, wanted: Iterator[WantedBatch], *, tolerant: bool) -> Iterator[Any]:
    if isinstance(source, BatchReader):
        return source.read(wanted, tolerant=tolerant)
    return source.read((request.indices for request in wanted), tolerant=tolerant)


def _wanted(order: BatchOrder, *, whole: bool) -> WantedBatch:
    """Return the samples to read for an order. These samples have the batch's identity, and are the same on every
    worker.
    """
    if not order.ranges:
        return WantedBatch(order.indices, None)
    first = order.ranges[0]
    if whole and order.whole is not None and order.claim is not None:
        return WantedBatch(order.whole, BatchName(first.epoch, first.shard, order.claim.begin, len(order.whole)))
    name = BatchName(first.epoch, first.shard, first.first, first.count)
    if order.share == 1.0 or order.whole is None or order.claim is None:
        return WantedBatch(order.indices, name)
    group = BatchName(first.epoch, first.shard, order.claim.begin, len(order.whole))
    return WantedBatch(order.indices, name, WantedBatch(order.whole, group))
