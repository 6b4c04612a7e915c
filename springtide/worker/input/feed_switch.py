"""Switch a worker between reading its batches itself and receiving them from data workers.

In: orders of worker/input/batches.py, and the master's list of data workers (worker/link/master_link.py). Out: batches
in the order of the orders, from either source. The source may change between any two batches. Leases, identities and
the end of a pass do not depend on it.

When the master first wants data workers, the worker finds the work that they can do (worker/split/controller.py),
between two batches. One worker of the job writes the job's package (dataworker/processes/job_package.py). Data workers
feed every worker whose program was split in the same way. If work cannot be handed over, the worker reports the reason
and reads its batches itself.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from springtide import errors
from springtide.data.source import Fetch, SampleSource, UnreadableBatch, as_batch, on_one_line
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.processes import job_package, package_transfer
from springtide.domain.data.data_workers import FeedState, LeftOut
from springtide.rpc.messages.data_workers import PACKAGE_KEY, Feeders, Package, feeds
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.input import bad_samples
from springtide.worker.input.read_batch import Fed
from springtide.worker.link.master_link import MasterLink
from springtide.worker.split.controller import Made, Splitting

log = logging.getLogger(__name__)

NO_INDICES = "an IterableDataset has no indices that could be handed to data workers"


@dataclass(slots=True)
class OwnReads:
    """Batches that this worker has read itself, and the time of its loop."""

    taken: int = 0
    read_s: float = 0.0
    looped_s: float = 0.0
    last: float = 0.0


class Feeding:
    """Source of batches with or without data workers, one per `job.prepare` over a data set with indices.

    `read` runs in one thread: the loop's, or a read-ahead thread. News from the master arrives in another thread.
    `between_batches` touches the model, so it runs in the loop's thread.
    """

    def __init__(
        self, source: SampleSource, splitting: Splitting, to_master: MasterLink, welcome: WorkerWelcome
    ) -> None:
        self._source, self._splitting, self._link, self._welcome = source, splitting, to_master, welcome
        self._lock = threading.Lock()
        self._news: Feeders | None = None
        self._attached: set[str] = set()
        self._feed: BatchFeed | None = None
        self._packaged: Package | None = None
        """Package of the job, once it exists and matches this worker's program."""
        self._unfed = ""
        """Reason why this worker always reads for itself."""
        self._wrong = ""
        """Reason why no further result of data workers may be used."""
        splitting.received.when_wrong = self._distrust
        self._dropped = ""
        self._told_made_here = False
        self._own = OwnReads()
        if not welcome.feeding.off:
            splitting.watch(looking=True)
        to_master.news.feeders.follow(self._heed)

    def read(self, wanted: Iterable[WantedBatch], *, tolerant: bool = False) -> Iterator[Any]:
        """Yield batches in the requested order, as `SampleSource.read` does; batches of data workers are `Fed`."""
        stream, self._own.last = _Stream(wanted), time.perf_counter()
        while not stream.ended:
            fed = self.fed
            part = _Noted(stream.part(lambda fed=fed: self.fed == fed))  # type: ignore[misc]
            easy = tolerant or self._skips
            for one in self._from_others(part, easy) if fed else self._from_here(part, easy):
                asked = part.popleft()
                self._count()
                yield self._answer(one, asked, tolerant, fed) if isinstance(one, UnreadableBatch) else one
                self._count()

    @property
    def fed(self) -> bool:
        """Return True if data workers are connected and their results can be used here."""
        there = self._packaged is not None and self._feed is not None and self._feed.state.workers > 0
        return there and self._wanted and not self._wrong

    @property
    def state(self) -> FeedState | None:
        if self._feed is None and self._welcome.feeding.off:
            return None
        state = FeedState() if self._feed is None else self._feed.state
        return replace(
            state,
            taken=state.taken + self._own.taken,
            read_s=state.read_s + self._own.read_s,
            looped_s=self._own.looped_s,
            stateless_s=self._splitting.stateless_s,
            checked=self._splitting.checked,
        )

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    # ---- batches ----

    @property
    def _skips(self) -> bool:
        return self._welcome.feeding.poison == "skip"

    def _from_here(self, part: Iterable[WantedBatch], tolerant: bool) -> Iterator[Any]:
        made = self._source.read((one.indices for one in part), tolerant=tolerant)
        while True:
            began = time.perf_counter()
            try:
                one = next(made)
            except StopIteration:
                return
            self._own.read_s += time.perf_counter() - began
            self._own.taken += one is not None
            yield one

    def _from_others(self, part: "_Noted", tolerant: bool) -> Iterator[Any]:
        assert self._feed is not None
        own = self._attempt if tolerant else self._splitting.received.own
        for made in self._feed.read(part, own, fed=lambda: self._wanted):
            whole = made is None or isinstance(made, Fed | UnreadableBatch)
            yield made if whole else self._splitting.received.receive(made, part[0].indices, part[0].name)

    def _answer(self, failed: UnreadableBatch, asked: WantedBatch, tolerant: bool, fed: bool) -> Any:
        """Return a replacement for a batch that could not be built: its rest, or an error that names the bad samples.

        A failure on data workers may not be the fault of a sample: the batch cannot be sent, or a file is missing
        there.
        """

        def fetch(indices: Any) -> Any:
            with batch_rng.seeded(self._welcome.seed, asked.name):  # use the batch's random numbers, not the loop's
                return self._source.fetch(indices)

        if fed:
            try:
                made = as_batch(fetch(asked.indices))
            except Exception as error:  # a data set may raise anything; the code below finds the bad sample
                log.debug("a batch that data workers could not make cannot be made here either: %s", error)
            else:
                self._tell_made_here(failed.error)
                return Fed(made)
        found = bad_samples.find(fetch, asked.indices)
        if self._skips:
            return self._rest(fetch, asked, found)
        if not tolerant:
            return Fed(
                as_batch(fetch(asked.indices))
            )  # raises the data set's error, unless the batch is readable by now
        return failed if found is None else UnreadableBatch(f"{found}: {found.error}")

    def _tell_made_here(self, error: str) -> None:
        """Report once that this worker builds batches on which data workers fail."""
        if not self._told_made_here:
            self._told_made_here = True
            log.warning("data workers could not make a batch, so it is made here: %s", error)
            self._link.reports.note("make batches here that data workers cannot", error)

    def _rest(self, fetch: Fetch, asked: WantedBatch, found: bad_samples.BadSamples | None) -> bad_samples.BatchRest:
        """Return the rest of a batch after reporting the bad samples to the master. A rank without samples borrows
        one.
        """
        rest, found = bad_samples.without(fetch, asked.indices, found)
        name = asked.name
        if rest.batch is None and found is not None and asked.group is not None:
            borrowed = bad_samples.borrow(fetch, asked.group.indices)
            if borrowed is None:  # all ranks find the same
                name, found = asked.group.name, replace(found, indices=tuple(asked.group.indices.tolist()))
            else:
                rest = borrowed
        if found is not None:
            assert name is not None, "whatever can be read has a name"
            left_out = LeftOut(name, found.indices, found.error)
            log.warning("trained without %s", left_out)
            self._link.reports.trained_without(left_out)
        return rest

    def _attempt(self, indices: Any) -> Fed | UnreadableBatch:
        try:
            return self._splitting.received.own(indices)
        except Exception as error:  # a user's data set may raise anything
            return UnreadableBatch(on_one_line(error))

    def _count(self) -> None:
        now = time.perf_counter()
        self._own.looped_s += now - self._own.last
        self._own.last = now

    # ---- news from the master ----

    def _heed(self, news: Feeders) -> None:
        with self._lock:
            self._news = news
            self._connect()

    @property
    def _wanted(self) -> bool:
        return self._news is not None and self._news.wanted > 0

    def _connect(self) -> None:
        """Connect to the current data workers, and disconnect from all others."""
        if self._feed is None or self._news is None or self._packaged is None:
            return
        stages = self._packaged.stages
        now = {each.name: each.address for each in feeds(self._news, stage=stages - 1, stages=stages)}
        for name in self._attached - now.keys():
            self._feed.detach(name)
        for name in now.keys() - self._attached:
            self._feed.attach(name, now[name])
        self._attached = set(now)

    # ---- package for data workers ----

    def between_batches(self) -> None:
        """Prepare the package once data workers are wanted. Runs in the loop's thread between two batches."""
        if self._wanted and self._feed is None and not self._unfed:
            self._splitting.watch()
            if self._splitting.ready:
                self._prepare()
        if self._wrong and not self._unfed:
            self._dropped = self._wrong
            self._refuse(f"what data workers make was not what this worker makes: {self._wrong}")
            self._link.reports.note("train without data workers", self._wrong)
        if self._dropped:
            why, self._dropped = self._dropped, ""
            self._splitting.drop(why)

    def _prepare(self) -> None:
        try:
            made = self._splitting.make()
        except errors.BadInput as error:
            self._refuse(str(error))
            return
        received = self._splitting.received
        self._feed = BatchFeed(
            self._welcome.secret,
            seed=self._welcome.seed,
            types=made.types,
            certificates=self._welcome.certificates,
            asks=received.asks,
            draws=lambda: received.draws,
        )
        threading.Thread(target=self._agree, args=(made,), name="springtide-package", daemon=True).start()

    def _agree(self, made: Made) -> None:
        """Write the package, unless another worker has; use data workers if the package holds the same program."""
        try:
            found = self._package(made)
        except errors.UserError as error:
            self._refuse(str(error))
            return
        except errors.SpringtideError as error:  # the job is over, or this worker was fenced
            log.info("no package: %s", error)
            return
        if found.digest != made.digest:
            self._unfed = self._dropped = (
                "its program was split otherwise than that of the worker which wrote the package; it reads for itself"
            )
            return
        with self._lock:
            self._packaged = found
            self._connect()

    def _package(self, made: Made) -> Package:
        if self._link.shared.claim(PACKAGE_KEY):
            paths = [path for path in sys.path if path]
            try:
                with package_transfer.writable(self._welcome.package) as folder:
                    sealed = job_package.write(folder, made.pipeline, secret=self._welcome.secret, paths=paths)
                    self._link.shared.deliver(folder, sealed)
            except errors.UserError:
                self._link.shared.settle(PACKAGE_KEY)  # no package will come, so checkpoints must not wait for it
                raise
            stages = made.pipeline.stages
            with_gpu = tuple(number for number, stage in enumerate(stages) if stage.device == "cuda")
            found = Package(made.digest, len(stages), with_gpu, sealed)
            self._link.shared.share(PACKAGE_KEY, msgspec.msgpack.encode(found))
            self._link.shared.settle(PACKAGE_KEY)
            moved = "reading, collating and a part of forward()" if made.moved else "reading and collating"
            self._link.reports.note(f"hand {moved} to data workers", made.told)
            return found
        return msgspec.msgpack.decode(self._link.shared.lookup(PACKAGE_KEY), type=Package)

    def _distrust(self, why: str) -> None:
        """Stop using data workers after a difference; this worker builds the queued batches instead."""
        self._wrong = self._wrong or why
        if self._feed is not None:
            self._feed.refuse()

    def _refuse(self, why: str) -> None:
        self._unfed = why
        log.warning("no data workers: %s", why)
        refuse(self._link, why)


def refuse(to_master: MasterLink, why: str) -> None:
    """Report to the master, whenever it wants data workers, that they cannot be used. A thread asks, because the link's
    thread must not.
    """

    def heed(news: Feeders) -> None:
        if news.wanted:
            threading.Thread(target=_tell, args=(to_master, why), name="springtide-unfed", daemon=True).start()

    to_master.news.feeders.follow(heed)


def _tell(to_master: MasterLink, why: str) -> None:
    try:
        to_master.reports.unfed(why)
    except errors.SpringtideError as error:
        log.info("the master does not hear that no data workers can be used: %s", error)


class _Noted(deque[WantedBatch]):
    """Queue of requested batches without an answer. Iterate over it to request more."""

    def __init__(self, wanted: Iterator[WantedBatch]) -> None:
        super().__init__()
        self._wanted = wanted

    def __iter__(self) -> Iterator[WantedBatch]:
        for one in self._wanted:
            self.append(one)
            yield one


class _Stream:
    """Stream of orders that is read in parts; `ended` once no order is left."""

    def __init__(self, wanted: Iterable[WantedBatch]) -> None:
        self._wanted, self.ended = iter(wanted), False

    def part(self, on: Callable[[], bool]) -> Iterator[WantedBatch]:
        """Yield orders while `on` returns True. It is checked before every order, so that no order is lost between two
        parts.
        """
        while on():
            one = next(self._wanted, None)
            if one is None:
                self.ended = True
                return
            yield one
