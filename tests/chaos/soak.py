"""Runs one job for a long time under light chaos, and reports whether it slows down, grows or leaks.

`python -m tests.chaos.soak --seconds 3600`. In: a time. Out: a table of throughput by sixth of that time, and of memory
and descriptors by role; exit code 1 if a promise is broken. Every sixth has the same faults at the same places, so the
sixths are comparable. A log feeds the job; it is sealed at the end, so all checks of a chaos run apply.
"""

import argparse
import collections
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace

import numpy as np

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from tests.chaos import checkers, driver, faults
from tests.chaos.modes import Mode
from tests.chaos.schedule import BATCH, Step

PARTS = 6
EVERY_S = 3.0
"""Seconds between two looks at the processes."""
WARM_S = 15.0
"""Age at which a process counts for slopes; before, it loads modules and fills its buffers."""
AHEAD = 20_000
"""Records that the log is ahead of the workers."""
CYCLE = [
    (0.1, Step("kill", "worker")),
    (0.3, Step("pause", "server", lasts=1 << 40)),
    (0.4, Step("kill", "server")),
    (0.6, Step("kill", "master")),
    (0.75, Step("scale", "workers", 3)),
    (0.9, Step("scale", "workers", 2)),
]
"""Faults of each sixth, with the share of its time at which each happens. The ranks take turns, because a role that is
killed twice within five minutes is relaunched later."""
MOST_CHANGE = 0.05
MOST_MORE_OPEN = 3
"""Descriptors that a role may have more at the end; a reconnection may just be open."""


class SteadyLog:
    """A log that stays ahead of its readers, with few different ids, so that tables do not grow."""

    def __init__(self, folder, seed):
        self._stream = create(folder / "log", LogSettings(partitions=3))
        self._writer, self._rng = self._stream.writer(), np.random.default_rng(seed)
        self._parts = []
        self.count = 0

    def append(self, count):
        rows = self._rng.integers(0, 1000, size=(count, 3), dtype=np.int64)
        for number in range(3):
            mine = rows[number::3]
            self._writer.append(number, mine.tobytes(), 24 * np.arange(1, len(mine) + 1, dtype=np.int64))
        self._writer.flush()
        self._parts.append(rows)
        self.count += count

    def seal(self):
        self._writer.close()
        self._stream.seal()
        self._stream.close()
        return np.concatenate(self._parts)


class SoakJob(driver.ChaosJob):
    """A chaos job without end: its records come as fast as it trains, and checkpoints at the usual pace."""

    most = 1 << 60
    settings = ("--heartbeat", "0.5", "--silence", "5", "--checkpoint-every", "10")

    def gate(self, batches):
        """Never hold the script back."""

    def _records(self, topic):
        self._url = f"log://{self.folder}/log"
        self.log = SteadyLog(self.folder, self.seed)
        self.log.append(AHEAD)
        return np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True)
class Look:
    """Private memory in MB, open descriptors, and age in seconds of a process at a time."""

    at: float
    role: str
    pid: int
    age_s: float
    memory: float
    open: int


class Watch(threading.Thread):
    """Feeds the log, and looks at the processes of a job every few seconds."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self._job, self._over = job, threading.Event()
        self.began = time.monotonic()
        self.looks, self.progress = [], [(0.0, 0, 0.0)]
        """`progress`: time, trained batches, and CPU seconds of the job's processes."""
        self._cpu, self._spent = {}, 0.0

    def run(self):
        looked = -EVERY_S
        while not self._over.wait(0.2):
            if (missing := AHEAD - (self._job.log.count - self._job.batches() * BATCH)) > 0:
                self._job.log.append(missing)
            now = time.monotonic() - self.began
            if now - looked >= EVERY_S:
                looked = now
                self._look(now)

    def end(self):
        self._over.set()
        if self.is_alive():
            self.join()

    def _look(self, now):
        for pid in driver.left_processes(self._job.folder):
            if (used := cpu_s(pid)) is not None:
                self._spent += max(0.0, used - self._cpu.get(pid, 0.0))
                self._cpu[pid] = used
        self.progress.append((now, self._job.batches(), self._spent))
        for role, pid in self._job.roles().items():
            if (seen := state_of(pid)) is not None:
                self.looks.append(Look(now, role, pid, *seen))


def cpu_s(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def state_of(pid):
    """Return age, private memory in MB, and number of open descriptors of a process; None if it is gone."""
    try:
        words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        count = len(os.listdir(f"/proc/{pid}/fd"))
        uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in status.splitlines())
    if "RssAnon" not in lines:
        return None
    return uptime - int(words[19]) / os.sysconf("SC_CLK_TCK"), int(lines["RssAnon"].split()[0]) / 1024, count


def soak(folder, seconds, seed):
    """Run the job; return its `Watch` and the violations of a chaos run."""
    job = SoakJob(folder, Mode(source="log", servers=2, workers=2), seed)
    found, watch = [], Watch(job)
    try:
        job.start()
        job.until_begun()
        job.until(lambda: job.batches() >= 100, "the first batches")
        watch.began = time.monotonic() - WARM_S
        watch.start()
        for part in range(PARTS):
            for share, drawn in CYCLE:
                step = drawn if drawn.fault == "scale" else replace(drawn, number=part)
                at = WARM_S + seconds * (part + share) / PARTS
                job.until(lambda at=at: time.monotonic() - watch.began >= at, "the end of the soak", within_s=seconds)
                print(f"{at:7.0f} s: {faults.inject(job, step).rpartition(': ')[2]}", flush=True)
        job.until(lambda: time.monotonic() - watch.began >= seconds + WARM_S, "the end", within_s=seconds)
        watch.end()
        job.ids = job.log.seal()
        found += checkers.violations(job, *job.finish())
    except (driver.JobEnded, driver.JobHangs) as error:
        found.append(str(error))
    finally:
        watch.end()
        job.close()
    return watch, found


def report(watch, seconds):
    """Return the lines of the report, and the promises that are broken."""
    lines, broken, rates = [], [], []
    for part in range(PARTS):
        begin, end = (WARM_S + seconds * (part + side) / PARTS for side in (0, 1))
        (t0, b0, c0), (t1, b1, c1) = (min(watch.progress, key=lambda row: abs(row[0] - at)) for at in (begin, end))
        rates.append(((b1 - b0) / (t1 - t0), (b1 - b0) / max(c1 - c0, 1e-9)))
        lines.append(f"sixth {part + 1}: {rates[-1][0]:7.1f} batches/s, {rates[-1][1]:6.2f} for a CPU second")
    wall, cpu = (rates[-1][kind] / rates[0][kind] - 1 for kind in (0, 1))
    lines.append(f"the last sixth against the first: {wall:+.1%} by wall clock, {cpu:+.1%} for a CPU second")
    if max(wall, cpu) < -MOST_CHANGE:
        broken.append("throughput has fallen")
    by_role = collections.defaultdict(list)
    for look in watch.looks:
        if look.age_s >= WARM_S:
            by_role[look.role].append(look)
    for role, looks in sorted(by_role.items()):
        first, last = looks_in(looks, 0, seconds), looks_in(looks, PARTS - 1, seconds)
        if not first or not last:
            continue
        words = [f"{role:12} {len({look.pid for look in looks}):3} processes"]
        for name, unit in (("memory", "MB"), ("open", "descriptors")):
            before, after = (statistics.median(getattr(look, name) for look in side) for side in (first, last))
            words.append(f"{before:6.1f} -> {after:6.1f} {unit}, {slope(looks, name):+7.2f} an hour")
            if (name == "open" and after > before + MOST_MORE_OPEN) or (name == "memory" and after > before * 1.1 + 5):
                broken.append(f"{role} grows: {words[-1]}")
        lines.append("; ".join(words))
    return lines, broken


def looks_in(looks, part, seconds):
    return [look for look in looks if part <= (look.at - WARM_S) * PARTS / seconds < part + 1]


def slope(looks, name):
    """Return the growth an hour within the lives of the processes, by least squares over all of them."""
    lives = collections.defaultdict(list)
    for look in looks:
        lives[look.pid].append((look.at, getattr(look, name)))
    above = below = 0.0
    for rows in lives.values():
        times, values = (np.array(column) - np.mean(column) for column in zip(*rows, strict=True))
        above, below = above + float(times @ values), below + float(times @ times)
    return 3600 * above / below if below else 0.0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="springtide-soak-"))
    watch, found = soak(folder, given.seconds, given.seed)
    lines, broken = report(watch, given.seconds)
    print(*lines, *(f"VIOLATION {what}" for what in [*found, *broken]), sep="\n", flush=True)
    if found or broken:
        print(f"kept in {folder}")
    else:
        shutil.rmtree(folder)
    return int(bool(found or broken))


if __name__ == "__main__":
    sys.exit(main())
