"""The real processes of `bench shuffle`: a producer, and workers that read its log and give each other batches.

In: a scene and a strategy. Out: a `Told`: lags of all partitions over time, bytes, CPU. Next:
`springtide_lab.bench.stream.shuffling.shuffle`.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from springtide import errors
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import LogStream, create
from springtide_lab.bench.stream.shuffling import scene as scenes
from springtide_lab.bench.stream.shuffling.scene import Floats, Scene

STEP_S = 0.25
"""Between two columns of a picture."""
CALM = 1.3
"""So many times what usually waits is no backlog: it varies by some tenths, as batches fill and linger."""
START_S = 1.0
"""From the moment when all workers know each other to the first record."""
END_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run of one strategy."""

    strategy: str
    times: Floats
    """Seconds of the scene."""
    lag_s: Floats
    """Partitions by times."""
    waiting: Floats
    """Records that have come and are not trained, all partitions together, by times."""
    trained: int
    read_bytes: int
    sent_bytes: int
    """Between workers: batches and all words."""
    forwarded: int
    came_home: int
    cpu_s: float
    late_s: float
    """How late the producer was in the end: more than a moment, and the machine was too small for the scene."""

    @property
    def extra_traffic(self) -> float:
        """Bytes between workers for each byte that they read from the stream."""
        return self.sent_bytes / max(1, self.read_bytes)

    def usual(self, scene: Scene) -> float:
        """Records that wait in the last second before the burst: batches that fill, and queues."""
        before = (self.times >= scene.begins_s - 1.0) & (self.times < scene.begins_s)
        return float(self.waiting[before].mean())

    def drain_s(self, scene: Scene) -> float | None:
        """Seconds after it is quiet until no more records wait than usual, or little more; None: not before the end."""
        since = scene.quiet_from_s
        at = scenes.drained_at(self.times, self.waiting, since=since, calm=CALM * self.usual(scene))
        return None if at is None else at - since


class Crew:
    """One producer and some workers, for one run after the other; `with` starts and ends them."""

    def __init__(self, workers: int) -> None:
        self._count = workers
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Crew":
        with contextlib.ExitStack() as open_:
            self._workers = [open_.enter_context(_process("worker")) for _ in range(self._count)]
            self._producer = open_.enter_context(_process("producer"))
            self._open = open_.pop_all()
        return self

    def __exit__(self, *why: object) -> None:
        self._open.__exit__(*why)  # type: ignore[arg-type]

    def run(self, scene: Scene, strategy: str) -> Told:
        """Let a scene pass with this strategy."""
        with tempfile.TemporaryDirectory(prefix="springtide-shuffle-") as place:
            folder = pathlib.Path(place)
            create(folder / "log", LogSettings(partitions=scene.partitions)).close()
            self._prepare(scene, strategy, folder)
            began = time.time() + START_S
            _tell(self._producer, {"folder": str(folder / "log"), "scene": asdict(scene), "begins_at": began})
            produced = _hear(self._producer)
            for worker in self._workers:
                _tell(worker, {"stop": True})
            words = [_hear(worker) for worker in self._workers]
            if failures := [word["failure"] for word in words if word["failure"] != "''"]:
                raise errors.JobFailed(f"a worker of the bench has failed: {failures[0]}")
            times, lag_s, waiting = _looks(scene, folder, began)
        summed = ("trained", "read_bytes", "sent_bytes", "forwarded", "came_home", "cpu_s")
        return Told(
            strategy=strategy, times=times, lag_s=lag_s, waiting=waiting, late_s=produced["late_s"],
            **{key: sum(word[key] for word in words) for key in summed},
        )  # fmt: skip

    def _prepare(self, scene: Scene, strategy: str, folder: pathlib.Path) -> None:
        """Everybody knows what is theirs, and where the others are."""
        secret = os.urandom(32).hex()
        for rank, worker in enumerate(self._workers):
            own = [each for each in range(scene.partitions) if scene.owner(each) == rank]
            _tell(
                worker,
                {
                    "scene": asdict(scene), "rank": rank, "partitions": own, "strategy": strategy, "secret": secret,
                    "folder": str(folder / "log"), "url": f"log://{folder}/log", "seen": str(folder / f"{rank}.npz"),
                },
            )  # fmt: skip
        addresses = {f"worker-{rank}.0": _hear(worker)["address"] for rank, worker in enumerate(self._workers)}
        for worker in self._workers:
            _tell(worker, addresses)


def _looks(scene: Scene, folder: pathlib.Path, began: float) -> tuple[Floats, Floats, Floats]:
    """Times of the scene, lags then, and how many records waited."""
    times = np.arange(0.0, scene.ends_s, STEP_S)
    lag_s, waiting = np.zeros((scene.partitions, len(times))), np.zeros(len(times))
    appended = _appended(folder / "log", scene.partitions)
    for rank in range(scene.workers):
        seen = np.load(folder / f"{rank}.npz")
        nearest = np.clip(np.searchsorted(seen["times"], began + times), 0, len(seen["times"]) - 1)
        at = seen["times"][nearest]
        for column, partition in enumerate(seen["own"].tolist()):
            offsets = seen["offsets"][nearest, column]
            lag_s[partition] = scenes.lags(at, offsets, appended[partition])
            waiting += scenes.waiting(at, offsets, appended[partition])
    return times, lag_s, waiting


def _appended(folder: pathlib.Path, partitions: int) -> list[Floats]:
    """When each record came, partition by partition."""
    stream = LogStream(folder)
    reader, found = stream.open(), [list[Floats]() for _ in range(partitions)]
    reader.assign(dict.fromkeys(range(partitions), 0))
    while chunks := reader.poll(0.0, 2**20):
        for chunk in chunks:
            found[chunk.partition].append(chunk.records.appended_at)
    reader.close()
    stream.close()
    return [np.concatenate(parts) if parts else np.empty(0) for parts in found]


@contextlib.contextmanager
def _process(which: str) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-m", f"springtide_lab.bench.stream.shuffling.{which}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
        process.stdin.close()
        process.wait(END_S)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _tell(process: "subprocess.Popen[str]", what: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise errors.JobFailed(f"a process of the bench has ended with {process.wait()}: see its error above")
    heard: dict[str, Any] = json.loads(line)
    return heard
