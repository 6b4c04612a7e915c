"""The process of the walk's trainer: takes mini-batches from data workers, or makes them while it has none.

Started by processes.py. In, a line of JSON each: the job's secret (hex) and the seconds that a step takes on the
device; then {"attach": name, "address": address}. Out: a line with its `FeedState` ten times a second. It ends with its
input.

There is no GPU here: the device's part of a step is a wait of fixed length, in which the process uses no CPU. What the
trainer's cores are for is real: taking batches from its connections, and copying them to where the device reads.
"""

import dataclasses
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from springtide.dataworker.feed.connections import WantedBatch
from springtide.dataworker.feed.feed import BatchFeed
from springtide.domain.data.data_workers import BatchName
from springtide_lab.bench.dataworkers.walk import clicks

TELL_S = 0.1
SHARD = 1000
"""Mini-batches of a shard, for their names."""


def wanted() -> Iterator[WantedBatch]:
    for step in itertools.count():
        first = step * clicks.BATCH
        name = BatchName(0, step // SHARD, first % (SHARD * clicks.BATCH), clicks.BATCH)
        yield WantedBatch(np.arange(first, first + clicks.BATCH, dtype=np.int64), name)


class Device:
    """Where steps are done: memory of its own that a batch is copied to, and the time of a step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._memory: dict[str, torch.Tensor] = {}

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        for name, tensor in batch.items():
            there = self._memory.get(name)
            if there is None or there.shape != tensor.shape:
                self._memory[name] = tensor.clone()
            else:
                there.copy_(tensor)
        time.sleep(self._step_s)


def tell(feed: BatchFeed, began: float) -> None:
    """How it is fed, ten times a second, for as long as somebody reads it."""
    while True:
        now = time.monotonic()
        state = dataclasses.replace(feed.state, looped_s=now - began)
        try:
            print(json.dumps({"at": now, "state": msgspec.to_builtins(state)}), flush=True)
        except (BrokenPipeError, ValueError):
            return
        time.sleep(TELL_S)


def listen(feed: BatchFeed, over: threading.Event) -> None:
    for line in sys.stdin:
        said = json.loads(line)
        feed.attach(said["attach"], said["address"])
    over.set()


def main() -> None:
    torch.set_num_threads(1)
    first: dict[str, Any] = json.loads(sys.stdin.readline())
    feed = BatchFeed(bytes.fromhex(first["secret"]))
    device, make, over = Device(first["step_s"]), clicks.pipeline(), threading.Event()
    threading.Thread(target=listen, args=(feed, over), daemon=True).start()
    threading.Thread(target=tell, args=(feed, time.monotonic()), daemon=True).start()
    for batch in feed.read(wanted(), make):
        if over.is_set():
            break
        device.step(batch)
    feed.close()


if __name__ == "__main__":
    main()
