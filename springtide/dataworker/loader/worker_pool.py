"""Starts a loader's data workers after this process has made a first batch, and reads batches from them.

In: batches to make (loader.py), and the wanted number of data workers, or `Autosize`. Out: the batches, in order.
Without data workers, this process makes the batches.
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
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.feed.worker import Pipeline, PipelineStage
from springtide.dataworker.loader.collate import BatchMaker, CollatedBatch
from springtide.dataworker.loader.sampler import DrawnBatch, Indices
from springtide.dataworker.processes import job_package, local_processes
from springtide.dataworker.processes.supervisor import WorkerSupervisor
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import FeedRules, FeedState, FeedTarget
from springtide.planning.dataworkers import observation, tuner

log = logging.getLogger(__name__)

ROOM = 8  # default number of batches to make ahead: enough to bridge a pause of a data worker, and cheap in memory
DEADLY = 2  # how often data workers try a batch again before the batch counts as poison
# seconds to wait for a new data worker after one has died. After this time, this process makes the batch, at the risk
# of dying too.
WAIT_S = 120.0
POLL_S = 0.02
KILLS = "data workers die whenever they make this batch"


@dataclasses.dataclass(frozen=True, slots=True)
class _RunningWorkers:
    """Data workers that run one package, from their start to their end."""

    feed: BatchFeed
    supervisor: WorkerSupervisor
    forker: local_processes.WorkerForker
    folder: Path

    def close(self) -> None:
        self.supervisor.close()
        self.forker.close()
        self.feed.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerPool:
    """Pool that reads batches from the current data workers."""

    def __init__(
        self,
        dataset: Any,
        making: Callable[..., BatchMaker],
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
        self._running: _RunningWorkers | None = None
        self._before = FeedState()
        """Statistics of batches made in this process before the first feed started, and of earlier feeds."""
        self._told = False
        self._drawn: deque[tuple[int, DrawnBatch]] = deque()
        """Pending batches, each with the number of data worker deaths at the time of its request."""

    @property
    def state(self) -> FeedState:
        if self._running is None:
            return self._before
        now, before = self._running.feed.state, self._before
        return dataclasses.replace(
            now,
            made=before.made + now.made,
            taken=before.taken + now.taken,
            read_s=before.read_s + now.read_s,
            waited_s=before.waited_s + now.waited_s,
        )

    @property
    def pids(self) -> list[int]:
        return self._running.supervisor.pids if self._running is not None else []

    def resize(self, workers: int) -> None:
        """Change the number of data workers. The first data workers start after this process has made a batch."""
        self._wanted = workers
        if self._running is not None:
            self._running.supervisor.resize(workers)

    def read(self, drawn: Iterator[DrawnBatch], *, seed: int) -> Iterator[tuple[Any, DrawnBatch]]:
        """Yield the drawn batches in order, each with the result of its `BatchMaker`."""
        while self._running is None:
            batch = next(drawn, None)
            if batch is None:
                return
            answer = self._make_here(batch, seed)
            if self._wanted > 0 and not self._refused:
                self._open(CollatedBatch(*answer), seed)
            yield answer, batch
        self._drawn.clear()
        for answer in self._running.feed.read(self._noted(drawn), self._here, timeout_s=self._timeout_s):
            _, batch = self._drawn.popleft()
            self._check_workers()
            yield answer, batch

    def dismiss(self) -> None:
        """End all data workers. Does nothing in a forked process."""
        if os.getpid() != self._owner:
            return
        self._before = dataclasses.replace(self.state, queued=0, room=0, workers=0)
        running, self._running = self._running, None
        self._refused = self._told = False
        if running is not None:
            running.close()

    def _noted(self, drawn: Iterator[DrawnBatch]) -> Iterator[WantedBatch]:
        """Yield requests, and remember for each request how many data workers had died by then."""
        assert self._running is not None
        for batch in drawn:
            self._drawn.append((self._running.supervisor.deaths, batch))
            yield WantedBatch(batch.indices, batch.name)

    def _here(self, indices: Indices) -> Any:
        """Make a batch that no data worker can make now.

        If a batch was pending when a data worker died, the batch may have caused the death. Such a batch waits for the
        next data worker, because it could kill this process too.
        """
        assert self._running is not None
        supervisor, feed = self._running.supervisor, self._running.feed
        died, batch = self._drawn[0]
        for _ in range(DEADLY):
            if supervisor.deaths == died or not self._wait_for_one(supervisor, feed):
                return self._own(indices)
            for answer in feed.read([WantedBatch(batch.indices, batch.name)], lambda _: None):
                if answer is not None:
                    return answer
        return CollatedBatch(None, indices.tolist(), [KILLS] * len(indices), "")[:]

    def _wait_for_one(self, supervisor: WorkerSupervisor, feed: BatchFeed) -> bool:
        """Wait until a data worker accepts requests; return False if none comes."""
        until = time.monotonic() + WAIT_S
        while feed.state.workers == 0:
            self._check_workers()
            if supervisor.failed is not None or self._wanted == 0 or time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _make_here(self, batch: DrawnBatch, seed: int) -> Any:
        """Make a batch in this process, with the same random numbers as in a data worker."""
        began = time.perf_counter()
        with batch_rng.seeded(seed, batch.name):
            answer = self._own(batch.indices)
        spent = self._before.read_s + time.perf_counter() - began
        self._before = dataclasses.replace(self._before, read_s=spent, taken=self._before.taken + 1)
        return answer

    def _open(self, first: CollatedBatch, seed: int) -> None:
        """Package the pipeline and start data workers. On failure, this process continues alone."""
        if first.batch is None:
            return
        folder = Path(tempfile.mkdtemp(prefix="springtide-loader-"))
        secret = secrets.token_bytes(32)
        begin = functools.partial(_begin, self._init, self._dataset, self._wanted)
        try:
            codec.pack(first.batch)
            job_package.write(
                folder, Pipeline((PipelineStage("dataset", self._making(begin=begin)),)), secret=secret, paths=sys.path
            )
        except errors.UserError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._refused = True
            log.warning("cannot start data workers, so this process makes its batches itself: %s", error)
            return
        feed = BatchFeed(secret, room=self._room or ROOM, seed=seed, types=codec.types_in(first.batch))
        forker = local_processes.WorkerForker(folder, secret, seed=seed)
        self._running = _RunningWorkers(feed, WorkerSupervisor(feed, forker.start), forker, folder)
        self._running.supervisor.resize(self._wanted)

    def _check_workers(self) -> None:
        assert self._running is not None
        failed = self._running.supervisor.failed
        if failed is None or self._told:
            return
        if failed.deadly:
            raise errors.JobFailed(
                f"{failed.why}. The cause may also kill this process, so it does not make the batches itself: give the "
                "machine more memory, use fewer data workers, or pass num_workers=0 to make batches in this process"
            )
        self._told = True
        log.warning("%s; this process makes its batches itself", failed.why)


def _begin(worker_init_fn: Callable[[int], None] | None, dataset: Any, workers: int) -> None:
    """Set up a data worker before its first batch, as torch's DataLoader does for its workers."""
    number = local_processes.NUMBER or 0
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=torch.initial_seed(), dataset=dataset
    )
    if worker_init_fn is not None:
        worker_init_fn(number)


# seconds between two decisions. A loader's data workers start within two seconds, so a loader may decide ten times as
# often as a job.
EVERY_S = 3.0


class Autosize:
    """Proposes a number of data workers once per interval, by the same rules as a job and within the cores of this
    machine."""

    def __init__(self, cores: int, *, every_s: float = EVERY_S) -> None:
        self._cores = cores
        self._every_s = every_s
        self._tuning = tuner.begin(FeedRules(cpu=1.0, most=max(0, cores - 1), every_s=every_s))
        self._reports: list[observation.TrainerReport] = []
        self._decided_at: float | None = None
        self._changed_at = float("-inf")
        self._workers = 0

    def propose(self, at: float, state: FeedState) -> FeedTarget | None:
        """Record the current queue. Return None if no decision is due yet."""
        if self._cores < 2:
            return None
        if self._decided_at is None:
            self._decided_at = at
        if state.workers != self._workers:
            self._workers, self._changed_at = state.workers, at
        if not self._reports or at - self._reports[-1].at >= self._every_s / 20:
            self._reports.append(observation.TrainerReport(at, state))
        if at - self._decided_at < self._every_s:
            return None
        since = max(self._decided_at, observation.settled_at(self._changed_at, self._every_s))
        free = max(0.0, self._cores - 1.0 - state.workers)
        cores = observation.Cores(stages=(observation.StageCores(state.workers, 1.0),), free_cpu=free)
        seen = observation.see({"loader": self._reports}, cores, at=at, since=since)
        self._decided_at = at
        del self._reports[:-1]
        if seen is None:
            return None
        self._tuning, target = tuner.decide(self._tuning, seen)
        return target
