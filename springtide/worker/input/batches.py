"""The `batches` that the user's loop iterates over. Each batch goes to the step, and the loop ends when all workers
have finished.

In: a feed of batches (worker/input/feeds.py). Out: batches for the user's loop, or one trained batch again for a loop
that would otherwise get none. Next: worker/step/step.py receives every batch.
"""

import inspect
import logging
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from springtide import errors
from springtide.data import shards
from springtide.data.source import SampleSource, as_batch, on_one_line
from springtide.domain.data.samples import DatasetCard
from springtide.worker.epochs.epochs import BegunLoop, EpochTracker
from springtide.worker.input.batch_plan import PAUSED, RESTING, ReadBatch
from springtide.worker.link.progress import StepMeter
from springtide.worker.split.controller import Splitting
from springtide.worker.step.step import TrainingStep

log = logging.getLogger(__name__)


class Repeats:
    """Repeated batches for one `job.prepare`."""

    def __init__(
        self,
        source: SampleSource,
        card: DatasetCard,
        model: nn.Module,
        step: TrainingStep,
        *,
        parts: int = 1,
        unit: int = 1,
    ) -> None:
        self._source, self._card, self._model, self._step = source, card, model, step
        self._parts, self._unit = parts, unit
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hand_out(self, epoch: int) -> Any:
        """Return this worker's first batch of an epoch; None if the batch cannot be read."""
        try:
            batch = self._first_of(epoch)
        except Exception as error:  # a user's data set may raise anything
            log.warning("cannot repeat a batch of epoch %d: %s", epoch, on_one_line(error))
            return None
        if batch is not None:
            self._buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
            self._step.hand_again(batch)
        return batch

    def take_back(self) -> None:
        self._step.take_again()
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._buffers = []

    def _first_of(self, epoch: int) -> Any:
        if self._source.samples is None and self._card.in_step:
            # every rank takes part in every round, so a rank without a batch has no round that it could repeat
            return None
        if self._source.samples is None:
            first = next(iter(self._source.stream()), None)
            return None if first is None else as_batch(first.batch)
        card = self._card
        groups, end = self._source.groups, card.batch_size // self._parts
        indices = shards.indices(card, epoch=epoch, index=0, end=end, groups=groups)
        rank, workers = self._step.seat
        part = shards.rank_part(len(indices), rank=rank, workers=workers, unit=self._unit)
        return as_batch(self._source.fetch(indices[part]))


class LoopLength(NamedTuple):
    """Number of batches of a loop."""

    batches: Callable[[], int]
    exact: bool = True
    """False if the count is a worker's fair share, of which the worker may get more or fewer batches."""


class BatchIterator:
    """Iterator of one loop over `batches`. When the next loop starts, this iterator ends."""

    def __init__(self, run: Generator[Any, None, None]) -> None:
        self._run = run
        self._taken = 0
        self._ended = False

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise errors.BadInput(
                "a later loop over batches has ended this loop: one loop at a time hands out a job's samples. "
                "Finish a loop before the next one, and do not nest loops over batches"
            )
        batch = next(self._run)
        self._taken += 1
        return batch

    @property
    def is_running(self) -> bool:
        """Whether a batch is handed out, so that the loop is neither ended nor left."""
        return inspect.getgeneratorstate(self._run) == inspect.GEN_SUSPENDED

    def end(self, length: LoopLength | None) -> None:
        """End the loop as `break` does. If the loop has taken all batches, the pass ends as after the last batch."""
        if inspect.getgeneratorstate(self._run) == inspect.GEN_CLOSED:
            return
        self._ended = True
        if length is not None and length.exact and self._taken == length.batches():
            next(self._run, None)
        self._run.close()


class Batches:
    """Iterable of batches for the training loop: `Batch(x, y)`, or the result of collate. Iterate again for the next
    pass."""

    def __init__(
        self,
        feed: Callable[[int], Iterator[ReadBatch]],
        step: TrainingStep,
        meter: StepMeter,
        *,
        ahead: bool,
        length: LoopLength | None,
        splitting: Callable[[], Splitting | None] = lambda: None,
        at_rest: Callable[[], None] = lambda: None,
        tracker: EpochTracker | None = None,
        repeats: Repeats | None = None,
        epochs: int = 1,
    ) -> None:
        """Create the iterable. `repeats` provides a trained batch for a loop that would otherwise be empty."""
        self.epoch = 0 if tracker is None else tracker.epoch
        """Epoch that the loop trains or will start with."""
        self.completes_step = True
        """Whether to call `optimizer.step()` after this batch; with `accumulate=`, True for the last batch of a sum."""
        self.repeated = False
        """Whether the current batch is already trained, so that its step changes nothing.

        A worker gets such a batch only if its loop would otherwise be empty. Leave the current batch out when counting
        samples.
        """
        self._open_feed = feed
        self._step = step
        self._meter = meter
        self._ahead = ahead
        self._length = length
        self._splitting = splitting
        self._at_rest = at_rest
        """Function to call when the loop has finished its last batch and asks for the next one."""
        self._tracker, self._repeats, self._epochs = tracker, repeats, epochs
        self._passes = 0
        self._current: weakref.ref[BatchIterator] | None = None
        """Iterator of the latest loop. A strong reference would keep the loop alive after `break`."""

    def __len__(self) -> int:
        """Return the number of batches of a loop: exact for one worker and a bsp group, else a worker's fair share."""
        if self._length is None:
            raise TypeError(
                "len(batches) is not known: the data set has no length (a stream, or an IterableDataset without "
                "__len__)"
            )
        return self._length.batches()

    def __iter__(self) -> BatchIterator:
        if self._current is not None and (earlier := self._current()) is not None:
            earlier.end(self._length)
        iterator = BatchIterator(self._run())
        self._current = weakref.ref(iterator)
        return iterator

    def _in_loop(self) -> bool:
        """Return True if the script is in a loop over these batches."""
        return self._current is not None and (latest := self._current()) is not None and latest.is_running

    def _run(self) -> Generator[Any, None, None]:
        begun = self._begin(sys._getframe(2))  # the frame that calls BatchIterator.__next__
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
                        self._tracker.on_handed_out(self.epoch)
                    handed_out = True
                    self._step.hand_out(now, None if following is None or following.batch is None else following)
                    yield now.batch if (splitting := self._splitting()) is None else splitting.hand_out(now)
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
            self._end_batch()

    def _begin(self, frame: FrameType) -> BegunLoop:
        if self._tracker is not None:
            return self._tracker.begin_loop(frame)
        self._passes += 1
        return BegunLoop(self._passes - 1)

    def _without_batches(self, tracker: EpochTracker) -> Iterator[Any]:
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
        if (splitting := self._splitting()) is not None:
            splitting.on_batch_done()

    def _leave(self) -> None:
        """End the pass after a `break` or an error. If the process is ending, do not wait."""
        if sys.is_finalizing():
            return
        try:
            self._step.close_pass(early=True)
            if self._tracker is not None:
                self._tracker.end_loop()
        except errors.JobFailed as error:
            log.warning("the loop ended early, and the servers may not have applied its last push: %s", error)

    def _feed(self, passes: int) -> Iterator[ReadBatch]:
        feed = self._open_feed(passes)
        while True:
            began = time.perf_counter()
            handed = next(feed, None)
            self._meter.data_read(time.perf_counter() - began)
            if handed is None:
                return
            yield handed
