"""Run the producer or a worker of `bench shuffle`: readers and sockets are those of a real job, but training only
waits.

Options: role (producer, worker). A round of a producer appends a scene's records; it takes folder, scene and begins_at,
and returns late_s. Rounds of a worker: {"what": "begin", ...}, which returns its address; {"what": "meet",
"addresses"}; {"what": "end"}.
"""

import pathlib
import threading
import time
from typing import Any

import line
import msgspec
import numpy as np

from springtide.data.stream.log.stream import LogStream
from springtide.data.stream.log.writer import MOST_OPEN
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import FAR, BatchCut, StreamCard
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.online.peers import Peers
from springtide.worker.online.shuffle_unit import ShuffleUnit
from springtide.worker.online.stream_reader import StreamBatchReader
from springtide.worker.online.usage_report import StreamMeter
from springtide_lab.bench.stream.shuffle import RECORD_BYTES, Scene

TOGETHER_S = 0.1
"""Seconds; records that are due within this time are appended now."""
OFTEN_S, SELDOM_S = 0.1, 0.5
"""Seconds between two appends to a partition, with up to a hundred partitions and with more; workers need the CPU."""
LOOK_S = 0.1


class Cuts:
    """Stand-in for the master. The stand-in acknowledges cuts immediately, and every partition stays with its
    worker.
    """

    def __init__(self, tracker: LeaseTracker) -> None:
        self._tracker = tracker

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        self._tracker.note_cuts(cuts, self._tracker.era)


def produce(asked: dict[str, Any]) -> dict[str, Any]:
    scene: Scene = msgspec.convert(asked["scene"], Scene)
    stream = LogStream(pathlib.Path(asked["folder"]))
    writers = [stream.writer() for _ in range(-(-scene.partitions // MOST_OPEN))]
    every_s = OFTEN_S if scene.partitions <= 100 else SELDOM_S
    done = np.zeros(scene.partitions, np.int64)
    order = np.random.default_rng(0).permutation(scene.partitions)
    block = bytes(RECORD_BYTES)
    began, turn = float(asked["begins_at"]), 0
    while (turn - scene.partitions) * every_s / scene.partitions <= scene.ends_s:
        partition, at_s = int(order[turn % scene.partitions]), turn * every_s / scene.partitions
        if (early := began + at_s - time.time()) > TOGETHER_S:
            time.sleep(early)
        count = scene.due(partition, min(at_s, scene.ends_s)) - int(done[partition])
        if count:
            ends = RECORD_BYTES * np.arange(1, count + 1, dtype=np.int64)
            writers[partition // MOST_OPEN].append(partition, block * count, ends)
            done[partition] += count
        turn += 1
    for writer in writers:
        writer.close()
    stream.seal()
    stream.close()
    return {"late_s": time.time() - began - scene.ends_s}


class ShuffleWorker:
    """One worker in one scene. `round` answers its requests in order."""

    def round(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["what"] == "begin":
            return self._begin(asked)
        if asked["what"] == "meet":
            if self._peers is not None:
                self._peers.follow(asked["addresses"])
            self._training.start()
            return {}
        return self._end()

    def _begin(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._over = threading.Event()
        self._scene: Scene = msgspec.convert(asked["scene"], Scene)
        rank, self._own = int(asked["rank"]), list(asked["partitions"])
        self._seen = pathlib.Path(asked["seen"])
        self._tracker = _leased(self._scene, self._own, asked["url"])
        self._unit = ShuffleUnit(self._tracker, strategy=asked["strategy"], seed=rank)
        self._peers = None
        if asked["strategy"] != "none":
            secret = bytes.fromhex(asked["secret"])
            self._peers = Peers(self._unit, secret, f"worker-{rank}.0", host="127.0.0.1")
            self._unit.connect(self._peers)
        self._training = threading.Thread(target=self._run, args=(LogStream(pathlib.Path(asked["folder"])),))
        return {"address": "" if self._peers is None else self._peers.address}

    def _run(self, stream: LogStream) -> None:
        use = StreamMeter()
        reading = StreamBatchReader(
            stream,
            self._tracker,
            self._unit,
            Cuts(self._tracker),  # type: ignore[arg-type]
            use,
            batch_size=self._scene.batch,
            linger_s=self._scene.linger_s,
        )
        looking = threading.Thread(target=_look, args=(self._tracker, self._own, self._over, self._seen))
        reading.begin()
        looking.start()
        _train(self._unit, self._scene, self._over)
        reading.close()
        looking.join()
        sent_bytes = self._unit.use.forwarded_bytes
        self._unit.close()
        stream.close()
        self._done = {
            "read_bytes": use.read_bytes,
            "sent_bytes": sent_bytes,
            "failure": repr(reading.failure or ""),
        }

    def _end(self) -> dict[str, Any]:
        self._over.set()
        self._training.join()
        return self._done


def _leased(scene: Scene, own: list[int], url: str) -> LeaseTracker:
    tracker = LeaseTracker()
    card = DatasetCard(samples=0, batch_size=scene.batch, shard_batches=1, shuffle=False, stream=StreamCard(url=url))
    tracker.begin_pass(card)
    tracker.add_grants(card, [Grant(each, 0, each, 0, FAR) for each in own])
    return tracker


def _train(unit: ShuffleUnit, scene: Scene, over: threading.Event) -> None:
    """Wait for the training time of each batch. If earlier waits took too long, later waits are shorter."""
    free_at = time.monotonic()
    while not over.is_set():
        run = unit.take(0)
        if run is None:
            run, free_at = unit.take(0.05), time.monotonic()
        if run is None:
            continue
        free_at += len(run.records) / scene.capacity
        time.sleep(max(0.0, free_at - time.monotonic()))
        unit.trained([run.claim])


def _look(tracker: LeaseTracker, own: list[int], over: threading.Event, path: pathlib.Path) -> None:
    times: list[float] = []
    rows: list[list[int]] = []
    while not over.wait(LOOK_S):
        offsets = {word.shard: word.offset for word in tracker.report().progress}
        times.append(time.time())
        rows.append([offsets[each] for each in own])
    np.savez(path, times=np.array(times), offsets=np.array(rows, np.int64).reshape(len(rows), len(own)), own=own)


def start(options: dict[str, Any]) -> line.Round:
    return produce if options["role"] == "producer" else ShuffleWorker().round
