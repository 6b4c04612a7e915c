"""Measure how soon a second worker continues the shard of a worker that `kill -9` ended, in a job of four workers.

In: a real job whose workers record the batches they train. Out: `seconds_over_two_heartbeats`, the measured time minus
two heartbeat periods. The value can be negative, because the agent notices the end of a process at once.
"""

import itertools
import pathlib
import statistics
import time

from springtide.data import shards
from springtide.domain.spec.job_spec import JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report
from springtide_lab.bench.core.jobs import TrainedBatch

SHARD_BATCHES = shards.LARGEST
WORKERS, ROWS, DIM, IDS = 4, 1000, 4, 1


def bench(options: Options) -> report.Result:
    kills, pause_s = (1, 0.005) if options.quick else (7, 0.02)
    spec = JobSpec(name="recovery", workers=WORKERS, relaunches=1000, backoff_s=0.0)
    with (
        harness.scratch() as folder,
        jobs.prepared(folder, jobs.SCRIPT, [folder, ROWS, DIM, IDS, pause_s], spec) as job,
    ):
        victims = [f"worker-{1 + kill % (WORKERS - 1)}" for kill in range(kills)]
        seconds = [one(job, folder, victim) for victim in harness.track("kill -9 of a worker", victims)]
    return judge(seconds, spec)


def one(job: LocalCluster, folder: pathlib.Path, victim: str) -> float:
    """Return the seconds from the kill until another worker trains a batch of the victim's current shard."""
    everyone = {f"worker-{rank}" for rank in range(WORKERS)}

    def all_train(_: object) -> bool:
        pids = job.pids()
        return everyone <= pids.keys() and {batch.pid for batch in trained(folder)} >= {pids[role] for role in everyone}

    job.until(all_train)
    pid = job.pids()[victim]
    killed_at = time.time()
    assert job.kill(victim), f"{victim} is not there"
    job.until(lambda _: pid not in job.pids().values())
    left = shard_of(max(batch for batch in trained(folder) if batch.pid == pid))
    found: list[float] = []

    def goes_on(_: object) -> bool:
        found[:] = [b.at for b in trained(folder) if b.pid != pid and shard_of(b) == left and b.at > killed_at]
        return bool(found)

    job.until(goes_on)
    return min(found) - killed_at


def trained(folder: pathlib.Path) -> list[TrainedBatch]:
    return list(itertools.chain.from_iterable(jobs.trained(folder)))


def shard_of(batch: TrainedBatch) -> int:
    return batch.first // (jobs.BATCH * SHARD_BATCHES)


def judge(seconds: list[float], spec: JobSpec) -> report.Result:
    middle = statistics.median(seconds)
    over = middle - 2 * spec.heartbeat_s
    return report.Result(
        goals=(report.goal("seconds_over_two_heartbeats", over, target=1.0, better="lower"),),
        rounds=len(seconds),
        columns=("what", "seconds"),
        rows=(
            ("from kill -9 to the first remaining batch, median", middle),
            ("the quickest", min(seconds)),
            ("the slowest", max(seconds)),
            ("heartbeat period", spec.heartbeat_s),
        ),
        notes=(f"{WORKERS} workers; one at a time is killed and relaunched; leases of {SHARD_BATCHES} batches",),
        details={"seconds": seconds, "heartbeat_s": spec.heartbeat_s},
    )
