"""A loader's data workers and the way to them: nothing of it exists until some are wanted and can be had.

In: batches to be made (loader.py), how many data workers are wanted. Out: the batches, in order; made in this process
while there are no data workers. Next: dataworker/processes/job_package.py writes down what they run,
dataworker/processes/supervisor.py keeps them, dataworker/feed/feed.py feeds the loop.
"""

import dataclasses
import functools
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from springtide import errors
from springtide.dataworker.feed.feed import Feed, Wanted
from springtide.dataworker.feed.stage import Pipeline, Stage
from springtide.dataworker.loader.collate import Made, Making
from springtide.dataworker.loader.sampler import Drawn, Indices
from springtide.dataworker.processes import fork_server, job_package, local_processes
from springtide.dataworker.processes.supervisor import Crew
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import FeedState

log = logging.getLogger(__name__)

ROOM = 8  # batches made ahead, where nobody says otherwise: enough for a data worker's hiccup, little memory


DEADLY = 2  # times more that a batch is tried at data workers before it is called poison
WAIT_S = 120.0  # for a data worker in place of one that died; then this process takes the risk
LOOK_S = 0.02
KILLS = "data workers die whenever they make this batch"


class Staff:
    """Reads batches with whatever data workers there are."""

    def __init__(
        self,
        dataset: Any,
        making: Callable[..., Making],
        *,
        init: Callable[[int], None] | None = None,
        room: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._dataset = dataset
        self._making = making
        self._own = making()
        self._init = init
        self._room = room
        self._timeout_s = timeout_s
        self._owner = os.getpid()
        self._wanted = 0
        self._refused = False
        self._feed: Feed | None = None
        self._crew: Crew | None = None
        self._nursery: local_processes.Nursery | None = None
        self._folder: Path | None = None
        self._before = FeedState()
        """What was made here before there was a feed, and by feeds that are gone."""
        self._told = False
        self._drawn: deque[tuple[int, Wanted]] = deque()
        """Batches under way, each with how many data workers had died when it was drawn."""

    @property
    def state(self) -> FeedState:
        """How batches have come so far."""
        if self._feed is None:
            return self._before
        now, before = self._feed.state, self._before
        return dataclasses.replace(
            now,
            made=before.made + now.made,
            taken=before.taken + now.taken,
            read_s=before.read_s + now.read_s,
            waited_s=before.waited_s + now.waited_s,
        )

    @property
    def crew(self) -> Crew | None:
        """The data workers, where there are any or were."""
        return self._crew

    def resize(self, workers: int) -> None:
        """So many data workers; the first come once a batch has shown what they are to make."""
        self._wanted = workers
        if self._crew is not None:
            self._crew.resize(workers)

    def read(self, drawn: Iterator[Drawn], own: Callable[[Drawn], Any], *, seed: int) -> Iterator[Any]:
        """Answers of `Making` in the order of the batches drawn; `own` makes one here."""
        while self._feed is None:
            one = next(drawn, None)
            if one is None:
                return
            answer = self._timed(own, one)
            if self._wanted > 0 and not self._refused:
                self._open(Made(*answer), seed)
            yield answer
        self._drawn.clear()
        for answer in self._feed.read(self._noted(drawn), self._here, timeout_s=self._timeout_s):
            self._drawn.popleft()
            self._look_after_crew()
            yield answer

    def dismiss(self) -> None:
        """End all data workers and forget about them. Nothing in a process forked off this one."""
        if os.getpid() != self._owner:
            return
        self._before = dataclasses.replace(self.state, queued=0, room=0, workers=0)
        crew, feed, home, folder = self._crew, self._feed, self._nursery, self._folder
        self._crew = self._feed = self._nursery = self._folder = None
        self._refused = self._told = False
        if crew is not None:
            crew.close()
        if home is not None:
            home.close()
        if feed is not None:
            feed.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _noted(self, drawn: Iterator[Drawn]) -> Iterator[Wanted]:
        """What is wanted, with how many data workers had died by then."""
        assert self._crew is not None
        for one in drawn:
            wanted = Wanted(one.indices, one.name)
            self._drawn.append((self._crew.deaths, wanted))
            yield wanted

    def _here(self, indices: Indices) -> Any:
        """A batch that no data worker is there to make. One that was under way when one died may have killed it.

        Such a batch is left to the next data worker rather than risk this process.
        """
        crew, feed = self._crew, self._feed
        assert crew is not None and feed is not None
        died, wanted = self._drawn[0]
        for _ in range(DEADLY):
            if crew.deaths == died or not self._wait_for_one(crew, feed):
                return self._own(indices)
            for answer in feed.read([wanted], lambda _: None):
                if answer is not None:
                    return answer
        return Made(None, indices.tolist(), [KILLS] * len(indices), "")[:]

    def _wait_for_one(self, crew: Crew, feed: Feed) -> bool:
        """Wait until a data worker can be asked; False: none comes."""
        until = time.monotonic() + WAIT_S
        while feed.state.workers == 0:
            self._look_after_crew()
            if crew.failed is not None or self._wanted == 0 or time.monotonic() > until:
                return False
            time.sleep(LOOK_S)
        return True

    def _timed(self, own: Callable[[Drawn], Any], one: Drawn) -> Any:
        began = time.perf_counter()
        answer = own(one)
        spent = self._before.read_s + time.perf_counter() - began
        self._before = dataclasses.replace(self._before, read_s=spent, taken=self._before.taken + 1)
        return answer

    def _open(self, first: Made, seed: int) -> None:
        """Write down what data workers run and start them; where that cannot be, this process goes on alone."""
        if first.batch is None:
            return
        folder = Path(tempfile.mkdtemp(prefix="springtide-loader-"))
        secret = secrets.token_bytes(32)
        begin = functools.partial(_begin, self._init, self._dataset, self._wanted)
        try:
            codec.pack(first.batch)
            job_package.write(
                folder, Pipeline((Stage("dataset", self._making(begin=begin)),)), secret=secret, paths=sys.path
            )
        except errors.UserError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._refused = True
            log.warning("no data workers, this process makes its batches itself: %s", error)
            return
        self._folder = folder
        self._feed = Feed(secret, room=self._room or ROOM, seed=seed, types=codec.types_in(first.batch))
        self._nursery = local_processes.Nursery(folder, secret, seed=seed)
        self._crew = Crew(self._feed, self._nursery.start)
        self._crew.resize(self._wanted)

    def _look_after_crew(self) -> None:
        assert self._crew is not None
        failed = self._crew.failed
        if failed is None or self._told:
            return
        if failed.deadly:
            raise errors.JobFailed(
                f"{failed.why}. What kills them may kill this process, so it does not go on by itself: give the "
                "machine more memory, use fewer data workers, or pass num_workers=0 to make batches in this process"
            )
        self._told = True
        log.warning("%s; this process makes its batches itself", failed.why)


def _begin(worker_init_fn: Callable[[int], None] | None, dataset: Any, workers: int) -> None:
    """In a data worker, before its first batch: as a worker of torch's DataLoader begins."""
    number = fork_server.NUMBER or 0
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=torch.initial_seed(), dataset=dataset
    )
    if worker_init_fn is not None:
        worker_init_fn(number)
