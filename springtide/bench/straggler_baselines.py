"""What `bench straggler` is shown beside, in real jobs: equal parts fixed beforehand, and stopping to start again.

In: how much CPU the slow worker is left. Out: `Baseline`, seconds beside the ideal of the same work. Equal parts are
one job a worker, so that nobody can take a part over; they get little work, for at 3% the slow one takes 25 times the
ideal. The restarted job has its checkpoint on this machine and warm files: what a cluster adds is `Delays`.
"""

import contextlib
import pathlib
import statistics
import tempfile
import time
from dataclasses import dataclass

from springtide.bench import restarting
from springtide.bench.straggler_job import (
    CPU,
    ROLES,
    SLOW,
    WORKERS,
    batches_of,
    go,
    pace,
    started,
    throttle,
    trained,
    until_ended,
    until_ready,
)  # fmt: skip
from springtide.domain.checkpoints import CheckpointRules

PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One job, or one in four parts."""

    slow: float
    took_s: float
    ideal_s: float

    @property
    def ratio(self) -> float:
        """How much longer than it had to be."""
        return self.took_s / self.ideal_s


def equal_parts(slow: float, work_s: float) -> Baseline:
    """Every worker has a quarter of what all of them could train in `work_s`, and keeps it."""
    part = batches_of(work_s, WORKERS - 1 + slow) // WORKERS
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as jobs:
        folders = [pathlib.Path(name) / f"part-{rank}" for rank in range(WORKERS)]
        parts = [jobs.enter_context(started(folder, part, workers=1)) for folder in folders]
        for rank, (job, folder) in enumerate(zip(parts, folders, strict=True)):
            until_ready(job, folder, workers=1)
            throttle(job, {ROLES[0]: CPU * (slow if rank == SLOW else 1.0)})
        began = time.monotonic()
        for folder in folders:
            go(folder)
        for job in parts:
            until_ended(job, PATIENCE_S)
        times = [trained(folder, workers=1)[0] for folder in folders]
    healthy = statistics.mean(
        len(mine) / (max(mine) - began) for rank, mine in enumerate(times) if rank != SLOW
    )  # fmt: skip
    ideal = part * WORKERS / (healthy * (WORKERS - 1 + slow))
    return Baseline(slow=slow, took_s=max(map(max, times)) - began, ideal_s=ideal)


def stop_and_restart(slow: float, *, even_s: float, work_s: float, notice_s: float) -> Baseline:
    """The job is stopped with a checkpoint `notice_s` after the throttling, and goes on with four healthy workers."""
    batches = batches_of(even_s, WORKERS) + batches_of(work_s, WORKERS - 1 + slow)
    quotas = dict.fromkeys(ROLES, CPU)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with started(folder, batches, rules=CheckpointRules(every_s=restarting.EVERY_S)) as job:
            until_ready(job, folder)
            throttle(job, quotas)
            go(folder)
            job.until(lambda _: all(trained(folder)))
            began = time.monotonic()
            job.until(lambda _: time.monotonic() > began + even_s)
            throttled_at = time.monotonic()
            throttle(job, {ROLES[SLOW]: CPU * slow})
            job.until(lambda _: time.monotonic() > throttled_at + notice_s)
            again = restarting.stop(job)
        with started(folder, batches, rules=again) as job:
            job.until(lambda status: status.workers_alive == WORKERS)
            throttle(job, quotas)
            until_ended(job, PATIENCE_S)
        times = trained(folder)
    left = sum(at >= throttled_at for mine in times for at in mine)
    paces = [pace(mine, began, throttled_at) for mine in times]
    capacity = sum(one * (slow if rank == SLOW else 1.0) for rank, one in enumerate(paces))
    return Baseline(slow=slow, took_s=max(map(max, times)) - throttled_at, ideal_s=left / capacity)
