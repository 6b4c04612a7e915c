"""Reads the batches that the worker's orders name. The reader is this worker, or data workers if the job has some.

In: the wanted batches, in order. Out: the batches in the same order. The source may change between any two batches,
because leases, identities and the end of a pass do not depend on it. If a batch cannot be read, the reader finds the
bad samples. The reader then builds the rest of the batch (--poison skip), or names the bad samples in the error. Next:
feed_switch.py, feeds.py.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from springtide.data.source import Fetch, Indices, SampleSource, UnreadableBatch, as_batch, on_one_line
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.connections import WantedBatch
from springtide.domain.data.data_workers import FeedState, LeftOut, samples_named
from springtide.rpc.messages.data_workers import Feeders
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.input.batch_plan import Fed
from springtide.worker.input.feed_switch import DataWorkerFeed
from springtide.worker.link.master_link import MasterLink
from springtide.worker.split.controller import Splitting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BadSamples:
    """Samples of one batch that raise when read alone."""

    indices: tuple[int, ...]
    error: str
    """Error of the first bad sample, on one line."""

    def __str__(self) -> str:
        return samples_named(self.indices)


class BatchRest(NamedTuple):
    """The rest of a batch without its bad samples."""

    batch: Any
    """The collated rest of the batch; None if no sample is left."""
    kept: Indices
    """Positions of the remaining samples among the requested samples."""
    borrowed: bool = False
    """True if the batch is a sample of another rank, whose gradient has weight 0."""


def find(fetch: Fetch, indices: Indices) -> BadSamples | None:
    culprits, error = [], ""
    for index in indices:
        try:
            fetch(np.array([index], dtype=np.int64))
        except Exception as raised:  # a user's data set may raise anything
            culprits.append(int(index))
            error = error or on_one_line(raised)
    return BadSamples(tuple(culprits), error) if culprits else None


def without(fetch: Fetch, indices: Indices, poison: BadSamples | None) -> tuple[BatchRest, BadSamples | None]:
    kept = np.arange(len(indices)) if poison is None else np.flatnonzero(~np.isin(indices, poison.indices))
    if not len(kept):
        return BatchRest(None, kept), poison
    try:
        return BatchRest(fetch(indices[kept]), kept), poison
    except Exception as raised:  # no single sample causes the error, so no worker can build this batch
        return BatchRest(None, kept[:0]), BadSamples(tuple(indices.tolist()), on_one_line(raised))


def borrow(fetch: Fetch, indices: Indices) -> BatchRest | None:
    for index in indices:
        try:
            return BatchRest(fetch(np.array([index], dtype=np.int64)), np.empty(0, dtype=np.int64), borrowed=True)
        except Exception as raised:  # a user's data set may raise anything
            log.debug("sample %d cannot be borrowed: %s", index, on_one_line(raised))
    return None


@dataclass(slots=True)
class OwnReads:
    """Batches that this worker has read without data workers, and the time of its loop."""

    taken: int = 0
    read_s: float = 0.0
    looped_s: float = 0.0
    last: float = 0.0

    def count(self) -> None:
        now = time.perf_counter()
        self.looped_s += now - self.last
        self.last = now


class BatchReader:
    """Reader of batches in a cluster. `read` runs in the loop's thread or in a read-ahead thread. All other methods run
    in the loop's thread."""

    def __init__(
        self,
        source: SampleSource,
        to_master: MasterLink,
        welcome: WorkerWelcome,
        open_feed: Callable[[], DataWorkerFeed],
    ) -> None:
        self._source, self._link, self._welcome, self._open_feed = source, to_master, welcome, open_feed
        self._skips = welcome.spec.feeding.poison == "skip"
        self._own = OwnReads()
        self._told_made_here = self._wanted = False
        self._feed: DataWorkerFeed | None = None
        if welcome.spec.feeding.off:
            to_master.news.feeders.follow(self._on_feeders)
        else:
            self._feed = open_feed()

    @property
    def splitting(self) -> Splitting | None:
        return None if self._feed is None else self._feed.splitting

    @property
    def fed(self) -> bool:
        return self._feed is not None and self._feed.fed

    @property
    def state(self) -> FeedState | None:
        """Return the state of the input queue for the reports; None for a job without data workers."""
        if self._feed is None:
            return None
        state, own = self._feed.state, self._own
        return replace(state, taken=state.taken + own.taken, read_s=state.read_s + own.read_s, looped_s=own.looped_s)

    def between_batches(self) -> None:
        if self._feed is None and self._wanted:
            self._feed = self._open_feed()
        if self._feed is not None:
            self._feed.between_batches()

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def read(self, wanted: Iterable[WantedBatch], *, tolerant: bool = False) -> Iterator[Any]:
        """Yield batches in the requested order, as `SampleSource.read` does. Batches of data workers are `Fed`."""
        orders, ended, self._own.last = iter(wanted), False, time.perf_counter()

        def until_switch(fed: bool) -> Iterator[WantedBatch]:
            nonlocal ended
            while self.fed == fed:
                order = next(orders, None)
                if order is None:
                    ended = True
                    return
                yield order

        while not ended:
            fed = self.fed
            part = _Noted(until_switch(fed))
            for made in self._from_others(part, tolerant) if fed else self._from_here(part, tolerant):
                asked = part.popleft()
                self._own.count()
                yield self._replacement(made, asked, tolerant, fed) if isinstance(made, UnreadableBatch) else made
                self._own.count()

    def _on_feeders(self, news: Feeders) -> None:
        self._wanted = news.wanted > 0

    def _from_here(self, part: Iterable[WantedBatch], tolerant: bool) -> Iterator[Any]:
        made = self._source.read((request.indices for request in part), tolerant=tolerant or self._skips)
        while True:
            began = time.perf_counter()
            try:
                batch = next(made)
            except StopIteration:
                return
            self._own.read_s += time.perf_counter() - began
            self._own.taken += batch is not None
            yield batch

    def _from_others(self, part: "_Noted", tolerant: bool) -> Iterator[Any]:
        def own(indices: Indices) -> Fed | UnreadableBatch:
            try:
                return Fed(as_batch(self._source.fetch(indices)))
            except Exception as error:  # a user's data set may raise anything
                if not (tolerant or self._skips):
                    raise
                return UnreadableBatch(on_one_line(error))

        assert self._feed is not None
        return self._feed.read(part, own, lambda: part[0])

    def _replacement(self, failed: UnreadableBatch, asked: WantedBatch, tolerant: bool, fed: bool) -> Any:
        """Replace a batch that could not be built by its readable samples, or by an error that names the bad ones.

        A failure on data workers may not be the fault of a sample: perhaps the batch cannot be sent, or the data
        worker lacks a file.
        """

        def fetch(indices: Any) -> Any:
            # seed the generators for this batch, without changing the loop's random state
            with batch_rng.seeded(self._welcome.spec.seed, asked.name):
                return self._source.fetch(indices)

        if fed:
            try:
                made = as_batch(fetch(asked.indices))
            except Exception as error:  # a data set may raise anything; the code below finds the bad sample
                log.debug("data workers could not read a batch, and this worker cannot read it either: %s", error)
            else:
                self._tell_made_here(failed.error)
                return Fed(made)
        bad = find(fetch, asked.indices)
        if self._skips:
            return self._rest(fetch, asked, bad)
        if not tolerant:  # this call raises the data set's error, unless the data set can now read the batch
            return Fed(as_batch(fetch(asked.indices)))
        return failed if bad is None else UnreadableBatch(f"{bad}: {bad.error}")

    def _tell_made_here(self, error: str) -> None:
        if not self._told_made_here:
            self._told_made_here = True
            log.warning("data workers could not read a batch, so this worker reads it: %s", error)
            self._link.reports.note("read batches here that data workers cannot read", error)

    def _rest(self, fetch: Fetch, asked: WantedBatch, bad: BadSamples | None) -> BatchRest:
        """Return the rest of a batch, and report the bad samples to the master. A rank without readable samples borrows
        a sample of another rank.
        """
        rest, bad = without(fetch, asked.indices, bad)
        name = asked.name
        if rest.batch is None and bad is not None and asked.group is not None:
            borrowed = borrow(fetch, asked.group.indices)
            if borrowed is None:  # all ranks get the same result
                name, bad = asked.group.name, replace(bad, indices=tuple(asked.group.indices.tolist()))
            else:
                rest = borrowed
        if bad is not None:
            assert name is not None, "every readable part of a batch has a name"
            left_out = LeftOut(name, bad.indices, bad.error)
            log.warning("trained without %s", left_out)
            self._link.reports.trained_without(left_out)
        return rest


class _Noted(deque[WantedBatch]):
    """Queue of requested batches that have no answer yet. Iterate over the queue to request more batches."""

    def __init__(self, wanted: Iterator[WantedBatch]) -> None:
        super().__init__()
        self._wanted = wanted

    def __iter__(self) -> Iterator[WantedBatch]:
        for request in self._wanted:
            self.append(request)
            yield request
