"""What `bench straggler` is shown beside, in real jobs: equal parts fixed beforehand, and stopping to start again.

In: how much CPU the slow worker is left, and the work. Out: `Baseline`, seconds beside the ideal of the same work.
Equal parts are one job a worker, so that nobody can take a part over; at 3% they get little work, for the slow one
takes 25 times the ideal. The restarted job has its checkpoint on this machine and warm files: what a cluster adds is
`Delays`.
"""

import contextlib
import pathlib
import tempfile
import time
from dataclasses import dataclass

from springtide.domain.model.checkpoints import CheckpointRules
from springtide_lab.bench.faults import stop_restart
from springtide_lab.bench.faults.straggler import straggler_job as jobs
from springtide_lab.bench.faults.straggler.straggler_job import CPU, ROLES, SLOW, WORKERS

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


def equal_parts(kind: str, slow: float, batches: int) -> Baseline:
    """Every worker has a quarter of them, and keeps it."""
    part = batches // WORKERS
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as entered:
        folders = [pathlib.Path(name) / f"part-{rank}" for rank in range(WORKERS)]
        parts = [entered.enter_context(jobs.started(folder, kind, part, workers=1)) for folder in folders]
        for rank, (job, folder) in enumerate(zip(parts, folders, strict=True)):
            jobs.until_ready(job, folder, workers=1)
            jobs.throttle(job, {ROLES[0]: CPU * (slow if rank == SLOW else 1.0)})
        began = time.monotonic()
        for folder in folders:
            jobs.go(folder)
        for job in parts:
            jobs.until_ended(job, PATIENCE_S)
        times = [jobs.trained(folder, workers=1)[0] for folder in folders]
    together = min(max(mine) for rank, mine in enumerate(times) if rank != SLOW)
    capacity = jobs.healthy_pace(times, began, together) * (WORKERS - 1 + slow)
    return Baseline(slow=slow, took_s=max(map(max, times)) - began, ideal_s=part * WORKERS / capacity)


def stop_and_restart(kind: str, slow: float, batches: int, *, even_s: float, notice_s: float) -> Baseline:
    """The job is stopped with a checkpoint `notice_s` after the throttling, and goes on with four healthy workers."""
    quotas = dict.fromkeys(ROLES, CPU)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with jobs.started(folder, kind, batches, rules=CheckpointRules(every_s=stop_restart.EVERY_S)) as job:
            jobs.until_ready(job, folder)
            jobs.throttle(job, quotas)
            jobs.go(folder)
            job.until(lambda _: all(jobs.trained(folder)))
            began = time.monotonic()
            job.until(lambda _: time.monotonic() > began + even_s)
            throttled_at = time.monotonic()
            jobs.throttle(job, {ROLES[SLOW]: CPU * slow})
            job.until(lambda _: time.monotonic() > throttled_at + notice_s)
            stopped_at = time.monotonic()
            again = stop_restart.stop(job)
        with jobs.started(folder, kind, batches, rules=again) as job:
            job.until(lambda status: status.workers_alive == WORKERS)
            jobs.throttle(job, quotas)
            jobs.until_ended(job, PATIENCE_S)
        times = jobs.trained(folder)
    left = sum(at >= throttled_at for mine in times for at in mine)
    capacity = jobs.healthy_pace(times, began, stopped_at) * (WORKERS - 1 + slow)
    return Baseline(slow=slow, took_s=max(map(max, times)) - throttled_at, ideal_s=left / capacity)
