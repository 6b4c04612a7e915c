"""Switches a worker to batches from data workers: finds the work that data workers can do, hands it over, and
connects to them.

In: the master's list of data workers. When the master first wants data workers, the worker finds the part of its
program that data workers can run (worker/split/controller.py). This happens between two batches. One worker of the job
writes the job's package. Data workers serve every worker whose program was split in the same way. A worker whose
program was split differently reports the reason to the master and reads its own data.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed, Own
from springtide.dataworker.processes import job_package, package_transfer
from springtide.domain.data.data_workers import FeedState
from springtide.rpc.messages.data_workers import PACKAGE_KEY, Feeders, Package, feeds
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.input.batch_plan import Fed
from springtide.worker.link.master_link import MasterLink
from springtide.worker.split.controller import Made, Splitting

log = logging.getLogger(__name__)

NO_INDICES = "an IterableDataset has no indices that data workers could read"


class DataWorkerFeed:
    """Connections to data workers, and the handover of work to them. `between_batches` runs in the loop's thread."""

    def __init__(self, splitting: Splitting, to_master: MasterLink, welcome: WorkerWelcome) -> None:
        self.splitting = splitting
        self._link, self._welcome = to_master, welcome
        self._lock = threading.Lock()
        self._news: Feeders | None = None
        self._attached: set[str] = set()
        self._feed: BatchFeed | None = None
        self._packaged: Package | None = None
        """Package of the job, once it exists and matches this worker's program."""
        self._unfed = ""
        """Reason why data workers can never feed this worker; empty if they can."""
        self._dropped = ""
        if not welcome.spec.feeding.off:
            splitting.watch(looking=True)
        to_master.news.feeders.follow(self._on_feeders)

    @property
    def fed(self) -> bool:
        there = self._packaged is not None and self._feed is not None and self._feed.state.workers > 0
        return there and self._is_wanted and not self.splitting.received.wrong

    @property
    def state(self) -> FeedState:
        state = FeedState() if self._feed is None else self._feed.state
        return replace(state, stateless_s=self.splitting.stateless_s, checked=self.splitting.checked)

    def read(self, wanted: Iterable[WantedBatch], own: Own, asked: Callable[[], WantedBatch]) -> Iterator[Any]:
        """Yield batches in order. `own` makes a batch in this process, and `asked` returns the request for the current
        batch."""
        assert self._feed is not None
        received = self.splitting.received
        for made in self._feed.read(wanted, own, fed=lambda: self._is_wanted):
            if made is None or isinstance(made, Fed | UnreadableBatch):
                yield made
            else:
                yield received.receive(made, asked().indices, asked().name, ask=self._feed.ask_again)
            if received.wrong:
                # use no more batches from data workers; this worker makes the queued batches itself
                self._feed.refuse()

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    # ---- news from the master ----

    def _on_feeders(self, news: Feeders) -> None:
        with self._lock:
            self._news = news
            self._connect()

    @property
    def _is_wanted(self) -> bool:
        return self._news is not None and self._news.wanted > 0

    def _connect(self) -> None:
        if self._feed is None or self._news is None or self._packaged is None:
            return
        stages = self._packaged.stages
        now = {feed.name: feed.address for feed in feeds(self._news, stage=stages - 1, stages=stages)}
        for name in self._attached - now.keys():
            self._feed.detach(name)
        for name in now.keys() - self._attached:
            self._feed.attach(name, now[name])
        self._attached = set(now)

    # ---- package for data workers ----

    def between_batches(self) -> None:
        """Prepare the package as soon as data workers are wanted. Runs in the loop's thread between two batches."""
        if self._is_wanted and self._feed is None and not self._unfed:
            self.splitting.watch()
            if self.splitting.ready:
                self._prepare()
        if (wrong := self.splitting.received.wrong) and not self._unfed:
            if self._feed is not None:
                self._feed.refuse()
            self._dropped = wrong
            self._refuse(f"a batch of data workers differs from this worker's batch: {wrong}")
            self._link.reports.note("train without data workers", wrong)
        if self._dropped:
            why, self._dropped = self._dropped, ""
            self.splitting.drop(why)

    def _prepare(self) -> None:
        try:
            made = self.splitting.make()
        except errors.BadInput as error:
            self._refuse(str(error))
            return
        received = self.splitting.received
        self._feed = BatchFeed(
            self._welcome.secret,
            seed=self._welcome.spec.seed,
            types=made.types,
            certificates=self._welcome.certificates,
            asks=received.asks,
            draws=lambda: received.draws,
        )
        threading.Thread(target=self._agree, args=(made,), name="springtide-package", daemon=True).start()

    def _agree(self, made: Made) -> None:
        """Write the package, unless another worker has written it. If the package contains this worker's program, use
        data workers.
        """
        try:
            found = self._package(made)
        except errors.UserError as error:
            self._refuse(str(error))
            return
        except errors.SpringtideError as error:  # the job is over, or this worker was fenced
            log.info("no data package was written: %s", error)
            return
        if found.digest != made.digest:
            self._unfed = self._dropped = (
                "its program was split differently from the program of the worker that wrote the package; "
                "it reads its own data"
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
                # no package will be written, so checkpoints must not wait for one
                self._link.shared.settle(PACKAGE_KEY)
                raise
            stages = made.pipeline.stages
            with_gpu = tuple(number for number, stage in enumerate(stages) if stage.device == "cuda")
            found = Package(made.digest, len(stages), with_gpu, sealed)
            self._link.shared.share(PACKAGE_KEY, msgspec.msgpack.encode(found))
            self._link.shared.settle(PACKAGE_KEY)
            moved = "reading, collating and a part of forward()" if made.moved else "reading and collating"
            self._link.reports.note(f"hand {moved} to data workers", made.summary)
            return found
        return msgspec.msgpack.decode(self._link.shared.lookup(PACKAGE_KEY), type=Package)

    def _refuse(self, why: str) -> None:
        self._unfed = why
        log.warning("no data workers: %s", why)
        refuse(self._link, why)


def refuse(to_master: MasterLink, why: str) -> None:
    """Whenever the master wants data workers, tell it that they cannot be used. The report runs in its own thread,
    because the link's thread must not wait for a reply."""

    def on_feeders(news: Feeders) -> None:
        if news.wanted:
            threading.Thread(target=_report_unfed, args=(to_master, why), name="springtide-unfed", daemon=True).start()

    to_master.news.feeders.follow(on_feeders)


def _report_unfed(to_master: MasterLink, why: str) -> None:
    try:
        to_master.reports.unfed(why)
    except errors.SpringtideError as error:
        log.info("cannot tell the master that data workers cannot be used: %s", error)
