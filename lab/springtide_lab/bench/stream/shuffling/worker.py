"""A worker of `bench shuffle`: reader, shuffle unit and sockets are a job's own; training is a wait of known length.

In: JSON lines on stdin, for every run: the scene with which partitions are its own; where its peers are; the word to
stop. Out: JSON lines on stdout: its address; what it has done. How far it was, and when, goes to a file.
"""

import json
import pathlib
import resource
import sys
import threading
import time
from typing import Any

import msgspec
import numpy as np

from springtide.data.stream.log.stream import LogStream
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut, StreamCard
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.online.shuffling.peers import Peers
from springtide.worker.online.shuffling.shuffle_unit import ShuffleUnit
from springtide.worker.online.stream_reader import StreamBatchReader
from springtide.worker.online.usage_report import StreamMeter
from springtide_lab.bench.stream.shuffling.shuffle import Scene

LOOK_S = 0.1


class Cuts:
    """What a master would note of cuts, noted at once: in this bench partitions stay where they are."""

    def __init__(self, tracker: LeaseTracker) -> None:
        self._tracker = tracker

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        self._tracker.note_cuts(cuts, self._tracker.era)


def main() -> None:
    while line := sys.stdin.readline():
        run(json.loads(line))


def run(asked: dict[str, Any]) -> None:
    before = _cpu_s()
    scene: Scene = msgspec.convert(asked["scene"], Scene)
    rank, own = int(asked["rank"]), list(asked["partitions"])
    tracker, stream = _leased(scene, own, asked["url"]), LogStream(pathlib.Path(asked["folder"]))
    unit = ShuffleUnit(tracker, strategy=asked["strategy"], seed=rank)
    _meet(unit, asked, f"worker-{rank}.0")
    use, over = StreamMeter(), threading.Event()
    reading = StreamBatchReader(
        stream,
        tracker,
        unit,
        Cuts(tracker),  # type: ignore[arg-type]
        use,
        batch_size=scene.batch,
        linger_s=scene.linger_s,
    )
    looking = threading.Thread(target=_look, args=(tracker, own, over, pathlib.Path(asked["seen"])))
    told = threading.Thread(target=_until_told, args=(over,))
    reading.begin()
    looking.start()
    told.start()
    trained = _train(unit, scene, over)
    reading.close()
    looking.join()
    told.join()
    done = unit.use
    unit.close()
    stream.close()
    _say(
        {
            "trained": trained,
            "read_bytes": use.read_bytes,
            "forwarded": done.forwarded,
            "sent_bytes": done.forwarded_bytes,
            "received": done.received,
            "came_home": done.came_home,
            "cpu_s": _cpu_s() - before,
            "failure": repr(reading.failure or ""),
        }
    )


def _meet(unit: ShuffleUnit, asked: dict[str, Any], name: str) -> None:
    if asked["strategy"] == "none":
        _say({"address": ""})
        sys.stdin.readline()
        return
    peers = Peers(unit, bytes.fromhex(asked["secret"]), name, host="127.0.0.1")
    unit.connect(peers)
    _say({"address": peers.address})
    peers.follow(json.loads(sys.stdin.readline()))


def _cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def _leased(scene: Scene, own: list[int], url: str) -> LeaseTracker:
    tracker = LeaseTracker()
    card = DatasetCard(samples=0, batch_size=scene.batch, shard_batches=1, shuffle=False, stream=StreamCard(url=url))
    tracker.begin_pass(card)
    tracker.add_grants(card, [Grant(each, 0, each, 0, FAR) for each in own])
    return tracker


def _train(unit: ShuffleUnit, scene: Scene, over: threading.Event) -> int:
    """Wait as long as each batch would take to train; never shorter because another wait was too long."""
    trained, free_at = 0, time.monotonic()
    while not over.is_set():
        run = unit.take(0)
        if run is None:
            run, free_at = unit.take(0.05), time.monotonic()
        if run is None:
            continue
        free_at += len(run.records) / scene.capacity
        time.sleep(max(0.0, free_at - time.monotonic()))
        unit.trained([run.claim])
        trained += len(run.records)
    return trained


def _look(tracker: LeaseTracker, own: list[int], over: threading.Event, path: pathlib.Path) -> None:
    """How far each partition is, ten times a second, to a file in the end."""
    times: list[float] = []
    rows: list[list[int]] = []
    while not over.wait(LOOK_S):
        offsets = {word.shard: word.offset for word in tracker.report().progress}
        times.append(time.time())
        rows.append([offsets[each] for each in own])
    np.savez(path, times=np.array(times), offsets=np.array(rows, np.int64).reshape(len(rows), len(own)), own=own)


def _until_told(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
