"""Run a process of `bench dataworkers-walk`: a trainer, or a data worker that preprocesses click logs as text.

Options: role (trainer, feeder), secret (hex); a trainer also takes step_s, the seconds that it waits for the simulated
device in each step. Rounds of a trainer: {"what": "attach", "name", "address"}, {"what": "reports"}; of a feeder:
{"what": "address" | "drain"}.
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import line
import msgspec
import numpy as np
import torch

from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.feed.worker import DataWorker
from springtide.domain.data.data_workers import BatchName
from springtide_lab.bench.dataworkers.text_clicks import LogLines, log_pipeline

REPORT_S = 0.1
SHARD = 1000
"""Mini-batches per shard; the names of batches contain the shard."""


def wanted() -> Iterator[WantedBatch]:
    for step in itertools.count():
        first = step * LogLines.BATCH
        name = BatchName(0, step // SHARD, first % (SHARD * LogLines.BATCH), LogLines.BATCH)
        yield WantedBatch(np.arange(first, first + LogLines.BATCH, dtype=np.int64), name)


def train(feed: BatchFeed, step_s: float) -> None:
    """Train on a simulated device: copy each batch to separate memory, and wait for the time of a step."""
    memory: dict[str, torch.Tensor] = {}
    for batch in feed.read(wanted(), log_pipeline()):
        for name, tensor in batch.items():
            there = memory.get(name)
            if there is None or there.shape != tensor.shape:
                memory[name] = tensor.clone()
            else:
                there.copy_(tensor)
        time.sleep(step_s)


def start_trainer(options: dict[str, Any]) -> line.Round:
    feed, reports, began = BatchFeed(bytes.fromhex(options["secret"])), list[dict[str, Any]](), time.monotonic()

    def report() -> None:
        while True:
            now = time.monotonic()
            state = dataclasses.replace(feed.state, looped_s=now - began)
            reports.append({"at": now, "state": msgspec.to_builtins(state)})
            time.sleep(REPORT_S)

    threading.Thread(target=train, args=(feed, options["step_s"]), daemon=True).start()
    threading.Thread(target=report, daemon=True).start()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "attach":
            feed.attach(request["name"], request["address"])
        taken = [reports.pop(0) for _ in range(len(reports))] if request["what"] == "reports" else []
        return {"reports": taken}

    return answer


def start_feeder(options: dict[str, Any]) -> line.Round:
    make = log_pipeline()
    make(np.arange(LogLines.BATCH))  # the first batch has extra costs, which the walk excludes
    serving = DataWorker(make, 0, bytes.fromhex(options["secret"]))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "drain":
            serving.drain()
            serving.done.wait()
            serving.close()
        return {"address": serving.address}

    return answer


def start(options: dict[str, Any]) -> line.Round:
    torch.set_num_threads(1)
    return {"trainer": start_trainer, "feeder": start_feeder}[options["role"]](options)
