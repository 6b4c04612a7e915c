"""The process of one of the walk's data workers. In: a line of JSON with the job's secret. Out: a line, its address.

Started by processes.py. When its input ends it takes no new work, hands out what it has made, and ends.
"""

import json
import sys

import numpy as np
import torch

from springtide.dataworker.feed.worker import DataWorker
from springtide_lab.bench.dataworkers.walk import clicks


def main() -> None:
    torch.set_num_threads(1)
    secret = bytes.fromhex(json.loads(sys.stdin.readline())["secret"])
    pipeline = clicks.pipeline()
    pipeline(np.arange(clicks.BATCH))  # what a first batch costs besides is no part of the walk
    serving = DataWorker(pipeline, 0, secret)
    print(json.dumps({"address": serving.address}), flush=True)
    sys.stdin.read()
    serving.drain()
    serving.done.wait()
    serving.close()


if __name__ == "__main__":
    main()
