"""A data worker of `bench dataworkers`: serves a package from one core; or makes its batches and keeps them.

Options: folder, core, fake, batch, samples. A round: {"what": "address"}; {"what": "alone", "seconds"} -> batches a
second that this core can make where nobody has to be sent any. fake: every answer is the first batch again, made once.
"""

import gc
import os
import pathlib
import time
from typing import Any

import line
import numpy as np
import torch


class Again:
    """Makes one batch, and gives it again for whatever is asked."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.made: Any = None

    def __call__(self, indices: Any) -> Any:
        if self.made is None:
            self.made = self.run(indices)
        return self.made


def start(options: dict[str, Any]) -> tuple[line.Round, dict[str, str]]:
    os.sched_setaffinity(0, [options["core"]])
    torch.set_num_threads(1)
    from springtide.dataworker.feed.worker import DataWorker, Pipeline, PipelineStage
    from springtide.dataworker.processes import job_package
    from springtide_lab.bench.dataworkers import fed_job

    pipeline = job_package.load(pathlib.Path(options["folder"]), secret=fed_job.SECRET)
    gc.freeze()  # as dataworker/processes/__main__.py does
    if options["fake"]:
        pipeline = Pipeline((PipelineStage("fake", Again(pipeline)),))
    serving = DataWorker(pipeline, 0, fed_job.SECRET, threads=1)
    turn = 0

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal turn
        if request["what"] == "address":
            return {"address": serving.address}
        began, times = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < request["seconds"] or not times:
            first = turn * options["batch"] % options["samples"]
            pipeline(np.arange(first, first + options["batch"]))
            turn += 1
            times += 1
        return {"figure": times / took}

    return answer, {}


if __name__ == "__main__":
    line.serve(start)
