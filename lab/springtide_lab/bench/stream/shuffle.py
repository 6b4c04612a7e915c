"""Measure global shuffling as in §4.3 of Kale, when one of many partitions gets ten times the records of the others.

In: a producer, a log and eight workers as real processes (shuffle_process.py); training is a wait of known length. Out:
the time to drain a backlog under three strategies, bytes sent between workers per byte read, and a picture.
"""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import LogStream, create
from springtide_lab import charts
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report
from springtide_lab.charts import BLUE, GREY, ORANGE, Curve, Panel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RECORD_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One stream with its traffic, and the workers that train it."""

    name: str
    partitions: int
    workers: int = 8
    capacity: float = 2000.0
    """Records per second that a worker trains, by waiting instead of computing."""
    load: float = 0.8
    """Share of each worker's capacity that arrives at the worker while all partitions have the same rate."""
    hot: int = 1
    """Number of partitions with a higher rate during the burst, all of one worker."""
    times: float = 10.0
    """Rate of a hot partition during the burst, relative to the other partitions."""
    begins_s: float = 2.0
    burst_s: float = 4.0
    ends_s: float = 20.0
    """Length of the scene in seconds."""
    at_once: bool = False
    """All extra records of the burst arrive at one moment, so that the backlog is the same under every strategy."""
    batch: int = 100
    linger_s: float = 0.5

    @property
    def rate(self) -> float:
        return self.load * self.capacity * self.workers / self.partitions

    @property
    def quiet_from_s(self) -> float:
        return self.begins_s if self.at_once else self.begins_s + self.burst_s

    def due(self, partition: int, at_s: float) -> int:
        count = self.rate * max(0.0, at_s)
        if self.owner(partition) == 0 and partition < self.hot * self.workers:
            in_burst = min(max(0.0, at_s - self.begins_s), self.burst_s)
            if self.at_once and at_s > self.begins_s:
                in_burst = self.burst_s
            count += self.rate * (self.times - 1) * in_burst
        return int(count)

    def owner(self, partition: int) -> int:
        return partition % self.workers

    def alone_s(self) -> float:
        """Return the computed seconds after the burst that the worker of the hot partitions needs without help."""
        return self._needs_s((1 - self.load) * self.capacity)

    def together_s(self) -> float:
        """Return the lag for the case that all workers share the backlog without any overhead."""
        return self._needs_s((1 - self.load) * self.capacity * self.workers)

    def _needs_s(self, spare: float) -> float:
        extra = self.rate * (self.times - 1) * self.hot
        return (extra if self.at_once else max(0.0, extra - spare)) * self.burst_s / spare


def lags(times: Floats, offsets: Ints, appended: Floats) -> Floats:
    """Return, for each time, how long a partition's oldest untrained record has waited, in seconds; 0 without untrained
    records.

    times: observation times. offsets: the partition's trained offset at each time. appended: each record's arrival.
    """
    there = np.searchsorted(appended, times, side="right")
    waiting_times = offsets < there
    first = np.where(waiting_times, np.minimum(offsets, max(0, len(appended) - 1)), 0)
    return np.where(waiting_times, times - appended[first], 0.0) if len(appended) else np.zeros(len(times))


def waiting_times(times: Floats, offsets: Ints, appended: Floats) -> Ints:
    """Return, for each time, how many records of a partition have arrived but are not trained yet."""
    there: Ints = np.searchsorted(appended, times, side="right").astype(np.int64)
    waits: Ints = np.maximum(there - offsets, np.int64(0))
    return waits


def drained_at(times: Floats, amount: Floats, *, since: float, calm: float) -> float | None:
    """Return the first time from `since` on after which the amount stays within `calm`, or None if there is none."""
    restless = np.flatnonzero((amount > calm) & (times >= since))
    if not len(restless):
        return since
    last = int(restless[-1])
    return float(times[last + 1]) if last + 1 < len(times) else None


STEP_S = 0.25
"""Seconds between two points of a picture."""
CALM = 1.3
"""Factor of the usual number of waiting records up to which there is no backlog; the number varies as batches fill."""
START_S = 1.0
"""Seconds from the time when all workers know each other to the first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleReport:
    """Measurements of one shuffle strategy in one scene."""

    strategy: str
    times: Floats
    """Times of the observations, in seconds from the start of the scene."""
    lag_s: Floats
    """Lag of each partition at each time in seconds, [partitions, times]."""
    waiting: Floats
    """Arrived and untrained records of all partitions together, at each time."""
    read_bytes: int
    sent_bytes: int
    """Bytes sent between workers: batches and control messages."""
    late_s: float
    """Seconds by which the producer was late at the end; more than a fraction means the machine was too slow."""

    @property
    def extra_traffic(self) -> float:
        """Bytes sent between workers for each byte that they read from the stream."""
        return self.sent_bytes / max(1, self.read_bytes)

    def usual(self, scene: Scene) -> float:
        """Return the mean number of waiting records in the last second before the burst."""
        before = (self.times >= scene.begins_s - 1.0) & (self.times < scene.begins_s)
        return float(self.waiting[before].mean())

    def drain_s(self, scene: Scene) -> float | None:
        """Return the seconds after the burst until about as few records wait as usual, or None if they never do."""
        since = scene.quiet_from_s
        at = drained_at(self.times, self.waiting, since=since, calm=CALM * self.usual(scene))
        return None if at is None else at - since


class ShuffleProcesses:
    """A producer and some workers for consecutive runs. A `with` statement starts and ends them."""

    def __init__(self, workers: int) -> None:
        self._count = workers
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "ShuffleProcesses":
        with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor() as pool:
            roles = ["producer", *["worker"] * self._count]
            started = pool.map(lambda role: peers.Worker("stream/shuffle_process", options={"role": role}), roles)
            self._producer, *self._workers = (stack.enter_context(process) for process in started)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, scene: Scene, strategy: str) -> ShuffleReport:
        with harness.scratch() as folder:
            create(folder / "log", LogSettings(partitions=scene.partitions)).close()
            self._prepare(scene, strategy, folder)
            began, log = time.time() + START_S, str(folder / "log")
            produced = self._producer.ask("round", folder=log, scene=asdict(scene), begins_at=began)
            words = self._ask_all("end")
            if failures := [word["failure"] for word in words if word["failure"] != "''"]:
                raise errors.JobFailed(f"a worker of the benchmark has failed: {failures[0]}")
            times, lag_s, waiting = _looks(scene, folder, began)
        return ShuffleReport(
            strategy=strategy,
            times=times,
            lag_s=lag_s,
            waiting=waiting,
            late_s=produced["late_s"],
            read_bytes=sum(word["read_bytes"] for word in words),
            sent_bytes=sum(word["sent_bytes"] for word in words),
        )

    def _prepare(self, scene: Scene, strategy: str, folder: pathlib.Path) -> None:
        shared = {
            "scene": asdict(scene),
            "strategy": strategy,
            "secret": os.urandom(32).hex(),
            "folder": str(folder / "log"),
            "url": f"log://{folder}/log",
        }
        addresses = {}
        for rank, worker in enumerate(self._workers):
            own = [each for each in range(scene.partitions) if scene.owner(each) == rank]
            seen = str(folder / f"{rank}.npz")
            begun = worker.ask("round", what="begin", rank=rank, partitions=own, seen=seen, **shared)
            addresses[f"worker-{rank}.0"] = begun["address"]
        self._ask_all("meet", addresses=addresses)

    def _ask_all(self, what: str, **more: Any) -> list[dict[str, Any]]:
        with futures.ThreadPoolExecutor(len(self._workers)) as pool:
            return list(pool.map(lambda worker: worker.ask("round", what=what, **more), self._workers))


def _looks(scene: Scene, folder: pathlib.Path, began: float) -> tuple[Floats, Floats, Floats]:
    times = np.arange(0.0, scene.ends_s, STEP_S)
    lag_s, waiting = np.zeros((scene.partitions, len(times))), np.zeros(len(times))
    appended = _appended(folder / "log", scene.partitions)
    for rank in range(scene.workers):
        seen = np.load(folder / f"{rank}.npz")
        nearest = np.clip(np.searchsorted(seen["times"], began + times), 0, len(seen["times"]) - 1)
        at = seen["times"][nearest]
        for column, partition in enumerate(seen["own"].tolist()):
            offsets = seen["offsets"][nearest, column]
            lag_s[partition] = lags(at, offsets, appended[partition])
            waiting += waiting_times(at, offsets, appended[partition])
    return times, lag_s, waiting


def _appended(folder: pathlib.Path, partitions: int) -> list[Floats]:
    stream = LogStream(folder)
    reader, found = stream.open(), [list[Floats]() for _ in range(partitions)]
    reader.assign(dict.fromkeys(range(partitions), 0))
    while chunks := reader.poll(0.0, 2**20):
        for chunk in chunks:
            found[chunk.partition].append(chunk.records.appended_at)
    reader.close()
    stream.close()
    return [np.concatenate(parts) if parts else np.empty(0) for parts in found]


def draw(runs: Sequence[ShuffleReport], path: pathlib.Path) -> None:
    """Draw the longest lag of a partition, the mean lag and the number of waiting records, by strategy."""
    figures: dict[str, Callable[[ShuffleReport], Floats]] = {
        "longest lag, s": lambda run: run.lag_s.max(axis=0),
        "mean lag, s": lambda run: run.lag_s.mean(axis=0),
        "records that wait": lambda run: run.waiting,
    }
    panels = [
        Panel(
            x="seconds",
            y=what,
            curves=[
                Curve(run.times.tolist(), values(run).tolist(), run.strategy, colour)
                for run, colour in zip(runs, (GREY, ORANGE, BLUE), strict=True)
            ],
        )
        for what, values in figures.items()
    ]
    charts.draw(path, panels, size=(7, 7))


STRATEGIES = ("none", "basic", "advanced")
BACKLOG = Scene(name="backlog", partitions=64, at_once=True, ends_s=24.0)
BURST = Scene(name="burst", partitions=64, ends_s=20.0)
MANY = Scene(name="burst of 800", partitions=800, hot=10, begins_s=3.0, ends_s=21.0, linger_s=1.0)
"""The rate of ten of one worker's hundred partitions becomes ten times as high; a single partition would add less than
a tenth of the traffic.
"""
SOONER_S = 13.0
"""Length of a scene with shuffling in seconds. A longer scene would lower the share of extra traffic."""
QUICK_WORKERS = 2
PAPER = "paper: 905 MB without, 1097 basic (+21%), 948 advanced (+4.8%), all traffic of a job; 10 times in production"


def bench(options: Options) -> report.Result:
    return measure(options, [BACKLOG, BURST, MANY])


def backlog(options: Options) -> report.Result:
    """Run only the `bench shuffle` scene in which the backlog arrives at one moment; this takes one minute instead of
    three."""
    return measure(options, [BACKLOG])


def burst(options: Options) -> report.Result:
    """Run only the `bench shuffle` scene with a burst; this takes one minute instead of three."""
    return measure(options, [BURST])


def many_partitions(options: Options) -> report.Result:
    """Run only the `bench shuffle` scene with a burst in ten of 800 partitions; this takes one minute instead of
    three."""
    return measure(options, [MANY])


def measure(options: Options, scenes: Sequence[Scene]) -> report.Result:
    found: dict[Scene, list[ShuffleReport]] = {}
    pictures: list[pathlib.Path] = []
    with ShuffleProcesses(QUICK_WORKERS if options.quick else scenes[0].workers) as workers:
        for scene in map(_short, scenes) if options.quick else scenes:
            found[scene] = [_run(workers, scene, strategy) for strategy in STRATEGIES]
            pictures.append(options.folder / f"shuffle-{scene.name.replace(' ', '-')}.png")
            draw(found[scene], pictures[-1])
    return _result(found, pictures)


def _run(workers: ShuffleProcesses, scene: Scene, strategy: str) -> ShuffleReport:
    harness.say(f"{scene.name}: {strategy}")
    if strategy != "none":
        scene = dataclasses.replace(scene, ends_s=min(scene.ends_s, SOONER_S))
    return workers.run(scene, strategy)


def _short(scene: Scene) -> Scene:
    return dataclasses.replace(scene, begins_s=1.0, burst_s=1.0, ends_s=4.0, workers=QUICK_WORKERS)


def _result(found: dict[Scene, list[ShuffleReport]], pictures: list[pathlib.Path]) -> report.Result:
    faster = {scene: _times_faster(scene, runs) for scene, runs in found.items()}
    slowest = None if None in faster.values() else min(each for each in faster.values() if each is not None)
    extra = max(runs[-1].extra_traffic for runs in found.values())
    late = max(run.late_s for runs in found.values() for run in runs)
    return report.Result(
        goals=(
            report.goal("drain_vs_none", slowest, target=5.0, why="a backlog was not drained"),
            report.goal("extra_traffic", extra, target=0.10, better="lower"),
        ),
        rounds=1,
        columns=("scene", "strategy", "drained s", "longest lag s", "extra traffic"),
        rows=tuple(
            (scene.name, run.strategy, run.drain_s(scene), float(run.lag_s.max()), f"{run.extra_traffic:.2%}")
            for scene, runs in found.items()
            for run in runs
        ),
        notes=(
            *(_note(scene, faster[scene]) for scene in found),
            f"the producer was {late:.1f} s late at the most; {PAPER}",
            *(f"picture: {path}" for path in pictures),
        ),
    )


def _times_faster(scene: Scene, runs: list[ShuffleReport]) -> float | None:
    none, ours = runs[0].drain_s(scene), runs[-1].drain_s(scene)
    return None if none is None or ours is None else none / max(ours, STEP_S)


def _note(scene: Scene, faster: float | None) -> str:
    share = (1 + scene.hot * (scene.times - 1) / scene.partitions) * scene.load
    return (
        f"{scene.name}: {scene.partitions} partitions, {scene.workers} workers of {scene.capacity:.0f} records/s "
        f"(a wait), loaded {scene.load:.0%}, {share:.0%} with {scene.hot} of them at {scene.times:g} times the rate; "
        f"by arithmetic one worker needs {scene.alone_s():.1f} s afterwards, all of them {scene.together_s():.1f}; "
        + ("not drained" if faster is None else f"drained {faster:.1f} times sooner with advanced than without")
    )
