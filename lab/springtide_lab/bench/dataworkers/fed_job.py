"""A worker that is fed by data workers but has no master: what a benchmark of data workers needs, and no more.

In: what of the program may move, and where the job's package goes. Out: a job as `st.join()` would give it, whose
batches come from the data workers that it is told of. Everything but the master is what a job has: the split, the
package, the feed. Next: dataworkers/fed_trainer.py and dataworkers/fed_worker.py.
"""

import pathlib
import threading
from collections.abc import Callable

import msgspec

from springtide import config
from springtide.data import source
from springtide.domain.data.data_workers import FeedRules
from springtide.rpc.messages.data_workers import PACKAGE_KEY, Feeder, Feeders
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.input import feed_switch
from springtide.worker.job import Job
from springtide.worker.link import master_link

SECRET = b"no secret between processes of one benchmark"


class FedLink(master_link.AloneLink):
    """Alone as far as leases go; says which data workers there are."""

    def __init__(self, settings: config.Settings, rules: FeedRules, folder: pathlib.Path) -> None:
        super().__init__(settings)
        self._rules, self._folder = rules, folder
        self._call: Callable[[Feeders], None] = lambda news: None
        self.packaged = threading.Event()
        """The trainer has written the job's package."""
        self._epoch = 0

    def join(self) -> WorkerWelcome:
        """As if a master had said what may be done about data workers."""
        return msgspec.structs.replace(super().join(), feeding=self._rules, package=str(self._folder), secret=SECRET)

    def follow_feeders(self, call: Callable[[Feeders], None]) -> None:
        """Who is to be told of data workers."""
        self._call = call

    def share(self, key: str, value: bytes) -> None:
        """The package's word is waited for."""
        super().share(key, value)
        if key == PACKAGE_KEY:
            self.packaged.set()

    def want(self) -> None:
        """Data workers are wanted, so what they need is to be made."""
        self.feed([])

    def feed(self, addresses: list[str]) -> None:
        """These feed from now on; none: the trainer reads for itself."""
        self._epoch += 1
        members = tuple(Feeder(f"data worker at {address}", address, n) for n, address in enumerate(addresses))
        self._call(Feeders(epoch=self._epoch, wanted=max(1, len(members)), members=members))


class FedJob(Job):
    """Its tables are in this process, since a server would want a third core; batches come as in a job with servers."""

    def __init__(self, rules: FeedRules, folder: pathlib.Path) -> None:
        settings = config.load()
        self.told = FedLink(settings, rules, folder)
        """Tell it of data workers."""
        self.feeding: feed_switch.Feeding | None = None
        super().__init__(settings, self.told)

    def _reader(self, opened: source.SampleSource) -> source.SampleSource | feed_switch.Feeding:
        assert self._splitting is not None
        self.feeding = feed_switch.Feeding(opened, self._splitting, self._link, self._welcome)
        return self.feeding
