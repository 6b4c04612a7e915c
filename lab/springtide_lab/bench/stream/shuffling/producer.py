"""The process that appends a scene's records to a log, on time. In: JSON on stdin. Out: a line when it is through.

{"folder": ..., "scene": {...}, "begins_at": time of day}
"""

import json
import pathlib
import sys
import time
from typing import Any

import msgspec
import numpy as np

from springtide.data.stream.log.stream import LogStream
from springtide.data.stream.log.writer import MOST_OPEN
from springtide_lab.bench.stream.shuffling.shuffle import RECORD_BYTES, Scene

TOGETHER_S = 0.1
"""What is due within that time is appended at once."""
OFTEN_S, SELDOM_S = 0.1, 0.5
"""Between two appends to a partition, up to a hundred of them and beyond: the machine is for the workers."""


def main() -> None:
    while line := sys.stdin.readline():
        run(json.loads(line))


def run(asked: dict[str, Any]) -> None:
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
    print(json.dumps({"records": int(done.sum()), "late_s": time.time() - began - scene.ends_s}), flush=True)


if __name__ == "__main__":
    main()
