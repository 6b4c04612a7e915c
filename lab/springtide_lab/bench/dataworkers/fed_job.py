"""A worker that is fed by data workers but has no master: what a benchmark of data workers needs, and no more.

In: what of the program may move, and where the job's package goes. Out: a job as `st.join()` would give it, whose
batches come from the data workers that it is told of. Everything but the master is what a job has: the split, the
package, the feed. Next: dataworkers/fed_process.py.
"""

import dataclasses
import pathlib
import threading

import msgspec

from springtide import config
from springtide.data.source import SampleSource
from springtide.domain.data.data_workers import FeedRules
from springtide.rpc.messages.data_workers import PACKAGE_KEY, Feeder, Feeders
from springtide.rpc.messages.messages import Ok, Reply, ShareRequest, WorkerWelcome
from springtide.worker.input.reader import BatchReader
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link
from springtide.worker.setup import Wired

SECRET = b"no secret between processes of one benchmark"


class FedMaster(LocalMaster):
    """A local master that wants data workers."""

    def __init__(self, settings: config.Settings, rules: FeedRules, folder: pathlib.Path) -> None:
        super().__init__(settings)
        self._rules, self._folder = rules, folder
        self.packaged = threading.Event()
        """The trainer has written the job's package."""

    def welcome(self) -> WorkerWelcome:
        """As if a master had said what may be done about data workers."""
        welcome = super().welcome()
        spec = dataclasses.replace(welcome.spec, feeding=self._rules)
        return msgspec.structs.replace(welcome, spec=spec, package=str(self._folder), secret=SECRET)

    def share(self, asked: ShareRequest) -> Reply:
        super().share(asked)
        if asked.key == PACKAGE_KEY:
            self.packaged.set()
        return Ok()


class FedJob(Job):
    """Its tables are in this process, since a server would want a third core; batches come as in a job with servers."""

    def __init__(self, rules: FeedRules, folder: pathlib.Path) -> None:
        settings = config.load()
        self.master = FedMaster(settings, rules, folder)
        self._roster = 0
        super().__init__(settings, local_link(settings, self.master))

    def want(self) -> None:
        self.feed_from([])

    def feed_from(self, addresses: list[str]) -> None:
        """Let these data workers feed from now on; without any the trainer reads for itself."""
        self._roster += 1
        members = tuple(Feeder(f"data worker at {address}", address, n) for n, address in enumerate(addresses))
        self._link.news.feeders.take(Feeders(epoch=self._roster, wanted=max(1, len(members)), members=members))

    @property
    def feeding(self) -> BatchReader | None:
        return self._input if isinstance(self._input, BatchReader) else None

    def _reader(self, source: SampleSource, wired: Wired) -> BatchReader:
        return self._batch_reader(source, wired)
