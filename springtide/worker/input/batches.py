"""The `batches` that the user's loop iterates over: read, handed to the step, ended when all workers end.

In: batch_plan.py and data/source.py. Out: batches for the user's loop. Next: worker/step/step.py receives every batch.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from springtide import errors
from springtide.data.source import SampleSource, UnreadableBatch, as_batch
from springtide.dataworker.feed.connections import WantedBatch
from springtide.domain.data.data_workers import BatchName
from springtide.worker.epochs.epochs import BegunLoop, EpochTracker
from springtide.worker.epochs.repeats import Repeats
from springtide.worker.input.bad_samples import BatchRest
from springtide.worker.input.batch_plan import BatchOrder, without
from springtide.worker.input.feed_switch import Feeding
from springtide.worker.input.read_batch import PAUSED, RESTING, Fed, ReadBatch
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.link.step_timer import StepMeter
from springtide.worker.split.controller import Splitting
from springtide.worker.step.step import TrainingStep

log = logging.getLogger(__name__)


class Batches:
    """Iterable of batches for the training loop; iterate again for the next epoch. Yields `Batch(x, y)` or the result
    of collate.
    """

    def __init__(
        self,
        feed: Callable[[int], Iterator[ReadBatch]],
        step: TrainingStep,
        meter: StepMeter,
        *,
        ahead: bool,
        length: int | None,
        splitting: Splitting | None = None,
        at_rest: Callable[[], None] = lambda: None,
        tracker: EpochTracker | None = None,
        repeats: Repeats | None = None,
        epochs: int = 1,
    ) -> None:
        """Create the iterable.

        `tracker` tracks epochs, if there are any. `epochs` is the number of epochs per pass. `repeats` hands out a
        trained batch to an otherwise empty loop.
        """
        self.epoch = 0 if tracker is None else tracker.epoch
        """Current epoch of the loop, or the epoch it starts with."""
        self.completes_step = True
        """Whether to call `optimizer.step()` with the current batch. With `accumulate=`, True for the last batch of a
        sum.
        """
        self.repeated = False
        """Whether another worker or an earlier incarnation has already trained the current batch, so that its step
        changes nothing. Such a batch appears only in a loop that would otherwise be empty. Leave it out when counting
        samples.
        """
        self._open_feed = feed
        self._step = step
        self._meter = meter
        self._ahead = ahead
        self._length = length
        self._splitting = splitting
        self._at_rest = at_rest
        """Function called when the loop asks for its next batch, after all work on the last batch is done."""
        self._tracker, self._repeats, self._epochs = tracker, repeats, epochs
        self._passes = 0
        self._running = False

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError(
                "len(batches) is not known: shards go to whichever worker is free (or the data set is iterable, or a "
                "batch comes a few samples at a time); drive a progress bar by samples instead"
            )
        return self._length

    def __iter__(self) -> Iterator[Any]:
        if self._running:
            raise errors.BadInput(
                "batches is being iterated over already: one loop at a time hands out a job's samples. "
                "Leave that loop first (break is enough), or call job.prepare again for another data set"
            )
        return self._run()

    def _run(self) -> Iterator[Any]:
        begun = self._begin(sys._getframe(1))
        self._running = True
        self.epoch = begun.number * self._epochs
        feed: Iterator[ReadBatch] = iter(()) if begun.finished else self._feed(begun.number)
        self._meter.restart()
        handed_out = False
        try:
            now = next(feed, None)
            while now is not None:
                following = next(feed, None) if self._ahead else None
                if now is PAUSED:
                    self._step.pause()
                elif now is RESTING:
                    self._step.rest()
                elif now.order.regroups is not None:
                    self._step.regroup(now.order.regroups)
                elif now.empty:
                    self._step.skip(now)
                else:
                    self.epoch, self.completes_step = now.order.epoch, now.order.last
                    if self._tracker is not None and not handed_out:
                        self._tracker.handed_out(self.epoch)
                    handed_out = True
                    self._step.hand_out(now, None if following is None or following.batch is None else following)
                    yield now.batch if self._splitting is None else self._splitting.hand_out(now)
                    self._step.on_batch_done()
                    self._end_batch()
                    self._at_rest()
                now = following if self._ahead else next(feed, None)
            if self._tracker is not None and not handed_out:
                yield from self._without_batches(self._tracker)
            if not begun.finished:
                self._end(self._tracker)
        except GeneratorExit:
            self._leave()
            raise
        finally:
            self._running = False
            self._end_batch()

    def _begin(self, frame: FrameType) -> BegunLoop:
        if self._tracker is not None:
            return self._tracker.begin_loop(frame)
        self._passes += 1
        return BegunLoop(self._passes - 1)

    def _without_batches(self, tracker: EpochTracker) -> Iterator[Any]:
        """Yield one repeated batch if the epoch has none left for this worker, so that the loop is not empty."""
        if tracker.ends_script:
            self._end(tracker)
            raise SystemExit(0)
        last = self.epoch + self._epochs - 1
        batch = None if self._repeats is None else self._repeats.hand_out(last)
        if self._repeats is not None and batch is not None:
            self.epoch, self.completes_step, self.repeated = last, True, True
            try:
                yield batch
            finally:
                self.repeated = False
                self._repeats.take_back()

    def _end(self, tracker: EpochTracker | None) -> None:
        self._step.close_pass(early=False)
        if tracker is not None:
            tracker.end_loop()

    def _end_batch(self) -> None:
        if self._splitting is not None:
            self._splitting.taken_back()

    def _leave(self) -> None:
        """End the pass after a break or an error. If the process is ending, do not wait."""
        if sys.is_finalizing():
            return
        try:
            self._step.close_pass(early=True)
            if self._tracker is not None:
                self._tracker.end_loop()
        except errors.JobFailed as error:
            log.warning("the loop was left, and what it had sent last may not be applied: %s", error)

    def _feed(self, passes: int) -> Iterator[ReadBatch]:
        feed = self._open_feed(passes)
        while True:
            began = time.perf_counter()
            handed = next(feed, None)
            self._meter.data_read(time.perf_counter() - began)
            if handed is None:
                return
            yield handed


def read(
    source: SampleSource | Feeding,
    orders: Iterable[BatchOrder],
    tracker: LeaseTracker | None = None,
    *,
    wholes: Callable[[], bool] = lambda: False,
    draining: Callable[[], bool] = lambda: False,
    plain: bool = True,
) -> Iterator[ReadBatch]:
    """Read the batches that the orders name. Readers in other processes run ahead, so orders queue up here.

    With `tracker`, an unreadable batch goes to other workers, and a batch with a revoked lease is skipped. Once the job
    is `draining`, batches read ahead are dropped. Without `tracker`, an error of the reader ends the loop. While
    `wholes` returns True, the whole group's batches are read instead of this rank's parts. If not `plain`, every rank
    needs at least one sample of its own.
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
            log.warning("shard %d of epoch %d cannot be read, others may try: %s", at.shard, at.epoch, collated.error)
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
    """Return a batch with some samples left out. If no sample is left, the loop does not get it."""
    if not plain and (rest.batch is None or rest.borrowed):
        raise errors.UnreadableSample(
            f"no sample can be made of those that a rank has of a batch (shard {order.ranges[0].shard}), and no rank "
            "can do without where gradients are summed in the order of the batch"
        )
    order = without(order, rest.kept, whole=whole, borrowed=rest.borrowed)
    return ReadBatch(order, as_batch(rest.batch), whole, empty=rest.batch is None)


def _made(source: SampleSource | Feeding, wanted: Iterator[WantedBatch], *, tolerant: bool) -> Iterator[Any]:
    if isinstance(source, Feeding):
        return source.read(wanted, tolerant=tolerant)
    return source.read((one.indices for one in wanted), tolerant=tolerant)


def _wanted(order: BatchOrder, *, whole: bool) -> WantedBatch:
    """Return the samples of an order with the identity of the batch, which is the same for every reader."""
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


def samples_in(collated: Any) -> int:
    """Return the number of samples of a collated mini-batch: the first dimension of its first tensor."""
    if isinstance(collated, torch.Tensor):
        return int(collated.shape[0]) if collated.ndim else 1
    parts: Iterable[Any] = ()
    if isinstance(collated, dict):
        parts = collated.values()
    elif isinstance(collated, (tuple, list)):
        parts = collated
    return next((count for part in parts if (count := samples_in(part))), 0)
