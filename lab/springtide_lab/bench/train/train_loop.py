"""Run the training loop of a zoo model: plain PyTorch with sparse EmbeddingBags, or the same loop with Springtide.

Options: kind, model, rows, dim, batch, batches, threads, lr, addresses (of servers), history (number of ranges of
trained batches that slots remember at the start). A round takes seconds, identities and times, and returns samples/s,
steps, CPU seconds and the parts of the time.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import line
import numpy as np
import torch
from torch.utils.data import Dataset

from springtide import zoo
from springtide.zoo.layers import ClickBatch
from springtide_lab.bench.cache import id_streams
from springtide_lab.bench.core import jobs

PACKAGES = ("torch",)

TABLES, DENSE = 26, 13
OLD_SHARD, HISTORY_A_PUSH = 1 << 31, 100  # separate ranges of a shard that the loop never trains


class LoopClicks(Dataset[Any]):
    """Ready batches in memory. Reading them costs almost nothing, and equally little in both loops."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.size: int = options["batch"]
        rng = np.random.default_rng(5)
        drawn = id_streams.zipf_batches(
            7, batches=options["batches"], tables=TABLES, rows=options["rows"], batch=self.size
        )
        self.made = []
        for batch in drawn:
            dense = rng.standard_normal((self.size, DENSE)).astype(np.float32)
            label = (rng.random(self.size) < 0.3).astype(np.float32)
            x = ClickBatch(dense=torch.from_numpy(dense), sparse=torch.from_numpy(batch.T.copy()))
            self.made.append((x, torch.from_numpy(label)))

    def __len__(self) -> int:
        return len(self.made) * self.size

    def batch(self, indices: Any) -> Any:
        return self.made[int(indices[0]) // self.size]


def start(options: dict[str, Any]) -> line.Round:
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    data = LoopClicks(options)
    model = zoo.model(options["model"], tables=[options["rows"]] * TABLES, dim=options["dim"], sparse=True)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options["lr"])
    job = None
    feed: Iterator[Any] = itertools.cycle(data.made)
    if options["kind"] == "springtide":
        job = jobs.job(options["addresses"])
        model, optimizer, batches = job.prepare(
            model, optimizer, data, batch_size=data.size, epochs=1_000_000, shuffle=False
        )
        feed = iter(batches)
        step: Any = batches._step
        for first in range(0, options.get("history", 0), HISTORY_A_PUSH):
            named = [(0, OLD_SHARD, 2 * at, 1) for at in range(first, first + HISTORY_A_PUSH)]
            step._client.push([], step=0, hyper=[], batches=named).wait()

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        if job:
            step.named = request.get("identities", True)
        before, times = job.meter.collect() if job else None, [time.perf_counter()]

        def train() -> None:
            x, y = next(feed)
            optimizer.zero_grad()
            zoo.loss(model(x), y).backward()
            optimizer.step()
            times.append(time.perf_counter())

        done = line.repeat(train, request["seconds"])
        rate = done.times * data.size / done.seconds
        answer: dict[str, Any] = {"figure": rate, "steps": done.times, "cpu_s": done.cpu_s}
        if request.get("times"):
            answer["times"] = times
        if job and before:
            spent = dataclasses.asdict(job.meter.collect())
            answer["spent"] = {name: value - getattr(before, name) for name, value in spent.items()}
        return answer

    return measure
