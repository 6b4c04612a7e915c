"""Gives a server ten times the workers that it can feed, and reports what becomes of throughput.

`python -m tests.chaos.overload`. The server gets a small share of a core, by its control group, so that few workers
suffice to overload it on any machine; this needs root. Throughput under overload must be within 10% of its peak, no
role may be given up, and throughput must be normal again within seconds after the load is gone.
"""

import argparse
import pathlib
import re
import shutil
import sys
import tempfile
import time

from tests.chaos import driver, soak
from tests.process import running

SCRIPT = """
import os
import sys

import torch
from torch import nn

import springtide as st


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return index

    def __getitems__(self, indices):
        return [(torch.tensor(index) * torch.arange(1, 9)) % 50_000 for index in indices]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = st.EmbeddingBag(16, init="zeros")

    def forward(self, x):
        return self.rows(x).sum()


job = st.join()
model = Model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Rows(), batch_size=256, epochs=1_000_000)
done = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for x in batches:
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()
    os.write(done, b".")
"""
CORES = 0.02
STEPS = (1, 2, 3)
"""Workers of the stages before the overload."""
TIMES = 10
NORMAL = 0.9
"""Share of the throughput before that counts as equal."""
NORMAL_S = 60.0
"""Longest time until throughput is normal again. Workers that leave finish their batch, which the server delays."""
SHOWN = "{:7.2f} batches/s, {:7.1f} for a CPU second of the server"
WARNING = re.compile(r"^\S+ \S+ (WARNING|ERROR)")


class Overload:
    """One job with a slow server."""

    def __init__(self, folder, measure_s):
        self.folder, self._measure_s = folder, measure_s
        (folder / "train.py").write_text(SCRIPT)
        self._count = folder / "batches"
        self._count.touch()
        words = ("run", "--name", "overload", "--workers", "1", "--servers", "1", "--cpu", "1", "--no-guards")
        words += ("--cache", "off", "--data-workers", "off", "--history", "", "train.py", "--", str(self._count))
        given = {driver.MARK: str(folder), "OMP_NUM_THREADS": "1"}
        self.command = running.Command(words, folder, given=given)
        self.files = folder / ".springtide" / "runs" / "overload"

    def wait(self, true, what, within_s=600.0):
        deadline = time.monotonic() + within_s
        while not true():
            assert self.command.process.poll() is None, f"the job ended before {what}: {self.command.rest()}"
            assert time.monotonic() < deadline, f"{what} did not come within {within_s:g} s"
            time.sleep(0.05)

    def events(self):
        return driver.events.read(self.files / "events.jsonl")

    def limit(self):
        """Give the server its small share of a core."""
        joined = (event for event in self.events() if event["event"] == "joined")
        (self._server,) = (int(event["pid"]) for event in joined if event["role"] == "server-0")
        for line in pathlib.Path(f"/proc/{self._server}/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", 2)
            assert "springtide" in place or "cpu" not in kinds.split(","), f"{place} is not the server's own group"
            if "cpu" in kinds.split(","):
                pathlib.Path(f"/sys/fs/cgroup/cpu{place}/cpu.cfs_quota_us").write_text(str(int(CORES * 100_000)))
            elif (group := pathlib.Path(f"/sys/fs/cgroup{place}/cpu.max")).exists() and "springtide" in place:
                group.write_text(f"{int(CORES * 100_000)} 100000")

    def scale(self, workers):
        done = running.Command(("scale", "overload", "--workers", str(workers), "--yes"), self.folder)
        code, out = done.finish()
        done.close()
        assert code == 0, out

    def present(self):
        """Return the number of workers that have joined and not left."""
        there = set()
        for event in self.events():
            if event["event"] == "joined" and event["role"].startswith("worker"):
                there.add(event["role"])
            elif event["event"] in ("exited", "left", "lost"):
                there.discard(event["role"])
        return len(there)

    def trained(self):
        return self._count.stat().st_size

    def rate(self, seconds):
        """Return batches over the next seconds: a second, and a CPU second of the server."""
        before, used, began = self.trained(), soak.cpu_s(self._server), time.monotonic()
        time.sleep(seconds)
        count, used = self.trained() - before, soak.cpu_s(self._server) - used
        return count / (time.monotonic() - began), count / max(used, 0.01)

    def warnings(self):
        """Return the warnings in the logs of all roles, such as those about timeouts and lost connections."""
        logs = sorted((self.files / "logs").glob("*.log"))
        lines = (line for path in logs for line in path.read_text(errors="replace").splitlines())
        return [line for line in lines if WARNING.match(line)]

    def stage(self, workers):
        self.scale(workers)
        self.wait(lambda: self.present() == workers, f"{workers} workers")
        time.sleep(self._measure_s / 4)
        rates = self.rate(self._measure_s)
        print(f"{workers:3} workers: {SHOWN.format(*rates)}, {len(self.warnings())} warnings so far", flush=True)
        return rates

    def run(self):
        """Return the violations."""
        self.wait(lambda: self.trained() > 10, "the first batches")
        self.limit()
        rates = {workers: self.stage(workers) for workers in STEPS}
        peak = max(rates.values())
        least = min(workers for workers, (rate, _) in rates.items() if rate >= NORMAL * peak[0])
        before = len(self.warnings())
        over = self.stage(TIMES * least)
        self.scale(least)
        began = time.monotonic()
        while (now := self.rate(2.0))[0] < NORMAL * rates[least][0] and time.monotonic() < began + 300:
            pass
        normal_s = time.monotonic() - began
        print(f"{least:3} workers: {SHOWN.format(*now)}, {normal_s:.1f} s after the order to scale", flush=True)
        found = self.warnings()[before:]
        if max(over[kind] / peak[kind] for kind in (0, 1)) < NORMAL:  # a busy machine may slow one stage down
            found.append(f"throughput falls to {over[0] / peak[0]:.0%} of its peak")
        if normal_s > NORMAL_S:
            found.append(f"throughput is normal only {normal_s:.0f} s after the overload")
        lost = [event for event in self.events() if event["event"] in ("lost", "failed")]
        return [*found, *(f"{event['event']} {event['role']}" for event in lost)]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a measurement")
    given = parser.parse_args(arguments)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="springtide-overload-"))
    job = Overload(folder, given.seconds)
    try:
        found = job.run()
    finally:
        job.command.close()
    print(*(f"VIOLATION {what}" for what in found), sep="\n", flush=True)
    if not found:
        shutil.rmtree(folder)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
