"""Data workers in processes of their own, for tests: `with forked_data_workers() as workers: workers.start(stage=0)`.

One process imports torch and forks whoever is asked for: a data worker is there in some milliseconds.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np

from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.domain.data.data_workers import BatchName
from tests.waiting import until

SECRET = b"a secret of this test"
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Started:
    pid: int
    address: str

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)


class DataWorkerForker:
    """Forks data workers, and trainers that only read."""

    def __init__(self, process):
        self.process = process

    def start(self, **options):
        """A data worker of `pipeline`; with `feeds`, addresses, a trainer."""
        return Started(**self._ask(options))

    def exit_code(self, started):
        """Waits for its end; negative where a signal ended it."""
        return self._ask({"reap": started.pid})["code"]

    def _ask(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def forked_data_workers():
    """All that were forked are gone at the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.process.data_workers"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield DataWorkerForker(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def wanted(batches, size=4, epoch=0):
    """The batches of an epoch, each with its name."""
    for n in range(batches):
        name = BatchName(epoch=epoch, shard=0, first=n * size, samples=size)
        yield WantedBatch(np.arange(n * size, (n + 1) * size), name)


def samples(made):
    """Samples of all batches, in order of arrival."""
    return [int(sample) for batch in made for sample in batch["samples"]]


def pipeline(slow_s=0.0, floats=1):
    """Two stages: samples by index, then values from the first stage with a random number each."""
    import torch

    from springtide.dataworker.feed.worker import Pipeline, PipelineStage

    def first(indices):
        threading.Event().wait(slow_s)
        return {"samples": torch.from_numpy(indices), "noise": torch.rand(1), "rows": torch.zeros(floats)}

    def second(made):
        return made | {"hashed": made["samples"] * 7 % 31, "more": torch.rand(1)}

    return Pipeline((PipelineStage("read", first), PipelineStage("hash", second)))


def _serve(stage=0, slow_s=0.0, floats=1, before=()):
    from springtide.dataworker.feed.worker import DataWorker

    serving = DataWorker(pipeline(slow_s, floats), stage, SECRET)
    for address in before:
        serving.attach(address, address)
    signal.signal(signal.SIGTERM, lambda *_: serving.drain())

    def rest():
        serving.done.wait()
        serving.close()

    return serving.address, rest


def _train(feeds, batches):
    """A trainer that takes one batch after another and exits without notice."""
    feed = BatchFeed(SECRET)
    for address in feeds:
        feed.attach(address, address)
    until(lambda: feed.state.workers == len(feeds))
    reading = feed.read(wanted(10**9), pipeline())
    next(reading)
    return "", lambda: [next(reading) for _ in range(batches)]


def main():
    """Fork a process for each requested line and report how it ended."""
    import torch  # noqa: F401 - once, for all

    import springtide.dataworker.feed.worker  # noqa: F401

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    for line in sys.stdin:
        options = json.loads(line)
        if "reap" in options:
            print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(options["reap"], 0)[1])}), flush=True)
            continue
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            address, rest = (_train if "feeds" in options else _serve)(**options)
            os.write(write, address.encode() + b"\n")
            rest()
            return  # and ends as any script does
        os.close(write)
        with open(read) as told:
            print(json.dumps({"pid": pid, "address": told.readline().strip()}), flush=True)


if __name__ == "__main__":
    main()
