"""The trainer of `bench dataworkers`, held to one core: a plain loop over `batches`, wherever these are made.

Options: way, folder, core, other (where readers of a DataLoader run), batch, samples, hidden. A round: {"what":
"split"} -> what moves; {"what": "train", "seconds", "warm", "addresses", "fake"} -> steps a second, CPU and blocked
seconds a step, batches made by data workers. way: "in process", "DataLoader", "data set", "automatic"; "off" and
"auto": a job whose preprocessing is cheap, without data workers and with the tuner deciding every second.
"""

import os
import pathlib
import resource
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import line
import text_clicks
import torch

CHEAP = ("off", "auto")


class Trainer:
    """The user's loop, run as far as a round asks for."""

    def __init__(self, options: dict[str, Any]) -> None:
        from springtide.domain.data.data_workers import FeedRules
        from springtide_lab.bench.dataworkers import fed_job

        way = options["way"]
        rules = {"data set": FeedRules(workers=1, split="off"), "automatic": FeedRules(workers=1), "auto": FeedRules()}
        self.job = fed_job.FedJob(rules.get(way, FeedRules(workers=0)), pathlib.Path(options["folder"]))
        torch.manual_seed(0)
        model: Any = (text_clicks.PlainModel if way in CHEAP else text_clicks.Model)(options["hidden"])
        self.model, self.optimizer, self.batches = self.job.prepare(
            model,
            torch.optim.Adagrad(model.parameters(), lr=0.01),
            data(options),
            batch_size=options["batch"],
            epochs=10_000,
            **({"collate_fn": text_clicks.collate} if way not in (*CHEAP, "DataLoader") else {}),
        )
        self.steps = self.loop()
        self.tuned = TunedFeed(self.job) if way == "auto" else None

    def loop(self) -> Iterator[None]:
        """A step for every time that it is asked for one."""
        for one in self.batches:
            text_clicks.train(self.model, [self.optimizer], one)
            yield

    def split(self) -> dict[str, Any]:
        self.job.want()
        while not self.job.master.packaged.is_set():
            next(self.steps)
        assert self.job._splitting is not None
        made = self.job._splitting.make()
        return {"moved": made.explanation.summary if made.explanation is not None else made.why}

    def compare(self, some: bool) -> None:
        """Whether some of the batches of data workers are compared, as in every job."""
        from springtide.worker.split import received_batches

        if self.job._splitting is not None:
            self.job._splitting.received.every = received_batches.CHECKED if some else sys.maxsize

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Some steps that do not count, then some seconds that do."""
        if "addresses" in request:
            self.job.feed_from(request["addresses"])
        self.compare(False)  # with what forward() makes: fake batches, of which some may be queued, would be given up
        for _ in range(request["warm"]):
            next(self.steps)
        self.compare(not request.get("fake"))
        made, before, began, times = self.made(), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0
        ready = ready_s()
        while (took := time.perf_counter() - began) < request["seconds"] or not times:
            next(self.steps)
            times += 1
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        blocked = max(0.0, took - (ready_s() - ready))
        told = {"figure": times / took, "cpu_s": cpu / times, "blocked_s": blocked / times, "steps": times}
        told["made"] = self.made() - made
        tuned = self.tuned
        return told | ({"wanted": tuned.wanted, "decisions": tuned.decisions, "why": tuned.why} if tuned else {})

    def made(self) -> int:
        state = self.job.feeding.state if self.job.feeding is not None else None
        return state.made if state is not None else 0


def ready_s() -> float:
    """Seconds so far that this thread ran, or could have if others had not; all others it was blocked."""
    _, queued, _ = pathlib.Path("/proc/thread-self/schedstat").read_text().split()
    return time.thread_time() + int(queued) / 1e9


def data(options: dict[str, Any]) -> Any:
    """The data set of this way; with a DataLoader its reader is on the other core."""
    if options["way"] in CHEAP:
        return text_clicks.Ready(options["samples"])
    clicks = text_clicks.Clicks(options["samples"])
    if options["way"] != "DataLoader":
        return clicks
    return torch.utils.data.DataLoader(
        clicks,
        batch_size=options["batch"],
        shuffle=True,
        collate_fn=text_clicks.collate,
        num_workers=1,
        worker_init_fn=lambda number: os.sched_setaffinity(0, [options["other"]]),
    )


def start(options: dict[str, Any]) -> tuple[line.Round, dict[str, str]]:
    """Prepare the loop; it runs when a round asks for steps."""
    os.sched_setaffinity(0, [options["core"]])
    torch.set_num_threads(1)
    trainer = Trainer(options)
    return (lambda request: trainer.split() if request["what"] == "split" else trainer.train(request)), {}


class TunedFeed:
    """The master's part of tuning, beside the loop and at its cost: a word and a decision every second."""

    def __init__(self, job: Any) -> None:
        from springtide.domain.data.data_workers import FeedRules
        from springtide.planning.dataworkers import tuner

        self.job, self.tuning = job, tuner.begin(FeedRules(every_s=1.0))
        self.wanted = self.decisions = 0
        """Data workers that were wanted at any time."""
        self.why = ""
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        from springtide.planning.dataworkers import observation, tuner

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


if __name__ == "__main__":
    line.serve(start)
