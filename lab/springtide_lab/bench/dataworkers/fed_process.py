"""Run the trainer or a data worker of `bench dataworkers` on one core; only the master is not that of a real job.

Options: role (trainer, worker), folder, core, batch, samples; a trainer also takes way and hidden, a worker fake.
Rounds of a trainer: {"what": "split"} or {"what": "train", "seconds", "warm", "addresses", "fake"}; of a worker:
{"what": "address"} or {"what": "alone", "seconds"}. The ways "off" and "auto" run a job with cheap preprocessing.
"""

import dataclasses
import gc
import itertools
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import line
import msgspec
import numpy as np
import text_clicks
import torch

from springtide import config
from springtide.data.source import SampleSource
from springtide.dataworker.feed.worker import DataWorker, Pipeline, PipelineStage
from springtide.dataworker.processes import job_package
from springtide.domain.data.data_workers import FeedRules
from springtide.planning.dataworkers import observation, tuner
from springtide.rpc.messages.coordination import ShareRequest
from springtide.rpc.messages.data_workers import PACKAGE_KEY, Feeder, Feeders
from springtide.rpc.messages.messages import Ok, WorkerWelcome
from springtide.rpc.messages.types import Reply
from springtide.worker.input.reader import BatchReader
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link
from springtide.worker.setup import Wired
from springtide.worker.split import received_batches

CHEAP = ("off", "auto")
SECRET = b"no secret between processes of one benchmark"


class FedMaster(LocalMaster):
    """A local master that wants data workers."""

    def __init__(self, settings: config.Settings, rules: FeedRules, folder: pathlib.Path) -> None:
        super().__init__(settings)
        self._rules, self._folder = rules, folder
        self.packaged = threading.Event()
        """Set when the trainer has written the job's package."""

    def welcome(self) -> WorkerWelcome:
        """Return a welcome with the rules for data workers that a real master would send."""
        welcome = super().welcome()
        spec = dataclasses.replace(welcome.spec, feeding=self._rules)
        return msgspec.structs.replace(welcome, spec=spec, package=str(self._folder), secret=SECRET)

    def share(self, asked: ShareRequest) -> Reply:
        super().share(asked)
        if asked.key == PACKAGE_KEY:
            self.packaged.set()
        return Ok()


class FedJob(Job):
    """A job that reads batches like a job with servers, but has its tables in this process, because a server would need
    a third core.
    """

    def __init__(self, rules: FeedRules, folder: pathlib.Path) -> None:
        settings = config.load()
        self.master = FedMaster(settings, rules, folder)
        self._roster = 0
        super().__init__(settings, local_link(settings, self.master))

    def want(self) -> None:
        self.feed_from([])

    def feed_from(self, addresses: list[str]) -> None:
        """From now on, read batches from these data workers. If the list is empty, the trainer reads the samples
        itself.
        """
        self._roster += 1
        members = tuple(Feeder(f"data worker at {address}", address, n) for n, address in enumerate(addresses))
        self._link.news.feeders.take(Feeders(epoch=self._roster, wanted=max(1, len(members)), members=members))

    @property
    def feeding(self) -> BatchReader | None:
        return self._input if isinstance(self._input, BatchReader) else None

    def _reader(self, source: SampleSource, wired: Wired) -> BatchReader:
        return self._batch_reader(source, wired)


class Trainer:
    """The user's training loop, advanced by the steps that a round asks for."""

    def __init__(self, options: dict[str, Any]) -> None:
        way = options["way"]
        rules = {"data set": FeedRules(workers=1, split="off"), "automatic": FeedRules(workers=1), "auto": FeedRules()}
        self.job = FedJob(rules.get(way, FeedRules(workers=0)), pathlib.Path(options["folder"]))
        torch.manual_seed(0)
        model: Any = (text_clicks.PlainModel if way in CHEAP else text_clicks.TextModel)(options["hidden"])
        self.model, self.optimizer, self.batches = self.job.prepare(
            model,
            torch.optim.Adagrad(model.parameters(), lr=0.01),
            (text_clicks.Ready if way in CHEAP else text_clicks.TextClicks)(options["samples"]),
            batch_size=options["batch"],
            epochs=10_000,
            collate_fn=None if way in CHEAP else text_clicks.collate,
        )
        self.steps = self.loop()
        self.tuned = TunedFeed(self.job) if way == "auto" else None

    def loop(self) -> Iterator[None]:
        """Train one step in each iteration."""
        for batch in self.batches:
            text_clicks.train(self.model, [self.optimizer], batch)
            yield

    def split(self) -> dict[str, Any]:
        self.job.want()
        while not self.job.master.packaged.is_set():
            next(self.steps)
        assert self.job._splitting is not None
        made = self.job._splitting.make()
        return {"moved": made.explanation.summary if made.explanation is not None else made.why}

    def compare(self, some: bool) -> None:
        """Turn on or off the comparison of some received batches with local results, as in every job."""
        if self.job._splitting is not None:
            self.job._splitting.received.every = received_batches.CHECKED if some else sys.maxsize

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Train some warm-up steps, then measure some seconds."""
        if "addresses" in request:
            self.job.feed_from(request["addresses"])
        self.compare(False)  # some fake batches may be queued, and a comparison would reject them
        for _ in range(request["warm"]):
            next(self.steps)
        self.compare(not request.get("fake"))
        made, ready = self.made(), ready_s()
        done = line.repeat(lambda: next(self.steps), request["seconds"])
        blocked = max(0.0, done.seconds - (ready_s() - ready))
        told = {"figure": done.times / done.seconds, "cpu_s": done.cpu_s / done.times, "steps": done.times}
        told |= {"blocked_s": blocked / done.times, "made": self.made() - made}
        tuned = self.tuned
        return told | ({"wanted": tuned.wanted, "decisions": tuned.decisions, "why": tuned.why} if tuned else {})

    def made(self) -> int:
        state = self.job.feeding.state if self.job.feeding is not None else None
        return state.made if state is not None else 0


def ready_s() -> float:
    """Return the seconds for which this thread ran or waited for a core. At all other times the thread was blocked."""
    _, queued, _ = pathlib.Path("/proc/thread-self/schedstat").read_text().split()
    return time.thread_time() + int(queued) / 1e9


class TunedFeed:
    """The master's part of tuning: one report and one decision per second, in a thread of the trainer's process."""

    def __init__(self, job: Any) -> None:
        self.job, self.tuning = job, tuner.begin(FeedRules(every_s=1.0))
        self.wanted = self.decisions = 0
        """Number of decisions so far; `wanted` is the highest number of data workers that a decision has wanted
        so far.
        """
        self.why = ""
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        words: list[observation.TrainerReport] = []
        while True:
            time.sleep(1.0)
            at = time.monotonic()
            words = [*words[-3:], observation.TrainerReport(at, self.job.feeding.state)]
            seen = observation.see({"trainer": words}, observation.Cores(free_cpu=1.0), at=at, since=at - 2.5)
            if seen is not None:
                self.tuning, target = tuner.decide(self.tuning, seen)
                self.wanted = max(self.wanted, target.data_workers)
                self.decisions += 1
                self.why = target.why


class Again:
    """Make one batch, and return the same batch for every later request."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.made: Any = None

    def __call__(self, indices: Any) -> Any:
        if self.made is None:
            self.made = self.run(indices)
        return self.made


def start_trainer(options: dict[str, Any]) -> line.Round:
    trainer = Trainer(options)
    return lambda request: trainer.split() if request["what"] == "split" else trainer.train(request)


def start_worker(options: dict[str, Any]) -> line.Round:

    pipeline = job_package.load(pathlib.Path(options["folder"]), secret=SECRET)
    gc.freeze()  # as dataworker/processes/__main__.py does
    if options["fake"]:
        pipeline = Pipeline((PipelineStage("fake", Again(pipeline)),))
    serving = DataWorker(pipeline, 0, SECRET, threads=1)
    firsts = itertools.cycle(range(0, options["samples"], options["batch"]))

    def make() -> None:
        first = next(firsts)
        pipeline(np.arange(first, first + options["batch"]))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "address":
            return {"address": serving.address}
        done = line.repeat(make, request["seconds"])
        return {"figure": done.times / done.seconds}

    return answer


def start(options: dict[str, Any]) -> line.Round:
    os.sched_setaffinity(0, [options["core"]])
    torch.set_num_threads(1)
    return start_trainer(options) if options["role"] == "trainer" else start_worker(options)
