"""A script that counts the records of a stream, a producer for it, and a check of the counts.

As in counting.py, a table starts at zero and is trained by SGD at rate 1, with a gradient of -1 per occurrence. Every
record has a different number, so the table counts how often each record was trained. Dense parameters count all
records. A batch takes `pause_s` until the test calls `counting.hurry`.
"""

import threading

import numpy as np

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create

SCRIPT = """
import os
import pathlib
import signal
import sys
import time

import numpy as np
import torch
from torch import nn

import springtide as st

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stopped worker that is given up must wake as a zombie, not die
folder, batch, pause_s, options = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), eval(sys.argv[4])
hurry = folder / "hurry"
url = options.pop("url", f"log://{folder}/log")


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.often = st.EmbeddingBag(1, init="zeros")
        self.each = st.EmbeddingBag(2, init="zeros")
        self.seen = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        each = self.each(x[:, :1])[:, 0].sum()
        return each + self.often(x[:, 1:])[:, 0].sum() + self.seen.sum() * len(x)


def decode(bodies):
    return torch.from_numpy(np.frombuffer(b"".join(bodies), dtype=np.int64).reshape(-1, 3).copy())


job = st.join()
model = Counter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
data = st.stream(url, decode=decode, **options)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=batch)
for x in batches:
    time.sleep(0.0 if hurry.exists() else pause_s)  # what a real model would compute
    optimizer.zero_grad()
    (-model(x)).backward()
    optimizer.step()
if not job.leaving:
    state = model.state_dict()
    part = folder / f"counts-{os.getpid()}.npz"
    np.savez(
        part, each_keys=state["each.keys"], each=state["each.rows"], often_keys=state["often.keys"],
        often=state["often.rows"], seen=state["seen"],
    )
    part.rename(folder / "counts.npz")
"""


class Producer:
    """Appends numbered records to a log and remembers them."""

    def __init__(self, folder, *, partitions, seed=0):
        self.stream = create(folder / "log", LogSettings(partitions=partitions))
        self._rng, self._lock = np.random.default_rng(seed), threading.Lock()
        self._writer = self.stream.writer()
        self.records = np.empty((0, 3), dtype=np.int64)
        self.partitions = partitions

    def seal(self):
        """Seal the log."""
        self._writer.close()
        self.stream.seal()
        self.stream.close()

    def grow(self, partitions):
        """Add partitions."""
        with self._lock:
            self.stream.grow(partitions)
            self.partitions = partitions

    def append(self, count, *, partition=None):
        """Append this many records, to one partition or round-robin."""
        with self._lock:
            self._append(count, partition)

    def _append(self, count, partition):
        rows = self._rng.zipf(1.3, size=(count, 3)).astype(np.int64) % 1000
        rows[:, 0] = np.arange(len(self.records), len(self.records) + count)
        self.records = np.concatenate([self.records, rows])
        for number in range(self.partitions) if partition is None else [partition]:
            mine = rows[number :: self.partitions] if partition is None else rows
            self._writer.append(number, mine.tobytes(), 24 * np.arange(1, len(mine) + 1, dtype=np.int64))
        self._writer.flush()


def differences(folder, records):
    """Differences between trained counts and the appended records; empty if they are equal."""
    counts = np.load(folder / "counts.npz")
    wrong = {
        f"seen {place}": value - len(records) for place, value in enumerate(counts["seen"]) if value != len(records)
    }
    for name, column in (("each", records[:, :1]), ("often", records[:, 1:])):
        keys, times = np.unique(column, return_counts=True)
        held = dict(zip(counts[f"{name}_keys"].tolist(), counts[name][:, 0].tolist(), strict=True))
        for key, count in zip(keys.tolist(), times.tolist(), strict=True):
            if extra := held.pop(key, 0.0) - count:
                wrong[f"{name} {key}"] = extra
        wrong |= {f"{name} {key}, which was never appended": count for key, count in held.items()}
    return wrong
