"""How soon the work of a killed worker goes on: `kill -9` of one of four, until another trains a batch of what it left.

In: a real job whose workers write down what they train. Out: `seconds_over_two_heartbeats`, by which that time exceeds
two heartbeats; the agent sees a process die at once, so it can be negative.
"""

import pathlib
import statistics
import tempfile
import time
from dataclasses import dataclass

from springtide.data import shards
from springtide.domain.spec.job_spec import JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

BATCH = 64
SHARD_BATCHES = shards.LARGEST
WORKERS = 4

SCRIPT = """
import os, pathlib, sys, time
import torch
import springtide as st

folder, samples, pause_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


class Indices(torch.utils.data.Dataset):
    def __len__(self):
        return samples

    def __getitem__(self, index):
        return index


job = st.join()
model = st.EmbeddingBag(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = job.prepare(model, optimizer, Indices(), batch_size=BATCH, shuffle=False)
done = os.open(folder / f"trained-{job.rank}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for x in batches:
    time.sleep(pause_s)  # what a model would compute
    optimizer.zero_grad()
    model(x[:, None]).sum().backward()
    optimizer.step()
    os.write(done, f"{time.monotonic()} {int(x[0])}\\n".encode())
""".replace("BATCH", str(BATCH))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """One batch."""

    at: float
    pid: int
    shard: int


def bench(options: Options) -> report.Result:
    kills, pause_s = (1, 0.005) if options.quick else (7, 0.02)
    spec = JobSpec(name="recovery", workers=WORKERS, relaunches=1000, backoff_s=0.0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        seconds: list[float] = []
        with jobs.prepared(folder, SCRIPT, [name, 10**9, pause_s], spec) as job:
            with harness.bar("kill -9 of a worker", total=kills) as step:
                for kill in range(kills):
                    seconds.append(one(job, folder, f"worker-{1 + kill % (WORKERS - 1)}"))
                    step()
            job.stop("measured")
            job.wait()
    return judge(seconds, spec)


def one(job: LocalCluster, folder: pathlib.Path, victim: str) -> float:
    """Seconds from the kill to the first batch that another worker trains of the shard that the victim was at."""
    everyone = {f"worker-{rank}" for rank in range(WORKERS)}
    job.until(lambda _: everyone <= job.pids().keys() and training(folder) >= {job.pids()[role] for role in everyone})
    pid = job.pids()[victim]
    killed_at = time.monotonic()
    assert job.kill(victim), f"{victim} is not there"
    job.until(lambda _: pid not in job.pids().values())
    shard = max((batch for batch in trained(folder) if batch.pid == pid), key=lambda batch: batch.at).shard
    found: list[float] = []

    def goes_on(_: object) -> bool:
        found[:] = [b.at for b in trained(folder) if b.pid != pid and b.shard == shard and b.at > killed_at]
        return bool(found)

    job.until(goes_on)
    return min(found) - killed_at


def trained(folder: pathlib.Path) -> list[RecoveredJob]:
    batches = []
    for path in folder.glob("trained-*"):
        pid = int(path.name.rpartition("-")[2])
        for line in path.read_text().splitlines():
            at, _, index = line.partition(" ")
            if index:
                batches.append(RecoveredJob(at=float(at), pid=pid, shard=int(index) // (BATCH * SHARD_BATCHES)))
    return batches


def training(folder: pathlib.Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in folder.glob("trained-*") if path.stat().st_size}


def judge(seconds: list[float], spec: JobSpec) -> report.Result:
    middle = statistics.median(seconds)
    over = middle - 2 * spec.heartbeat_s
    return report.Result(
        goals=(report.goal("seconds_over_two_heartbeats", over, target=1.0, better="lower"),),
        rounds=len(seconds),
        columns=("what", "seconds"),
        rows=(
            ("from kill -9 to the first batch of what was left, median", middle),
            ("the quickest", min(seconds)),
            ("the slowest", max(seconds)),
            ("heartbeat period", spec.heartbeat_s),
        ),
        notes=(f"{WORKERS} workers; one at a time is killed and relaunched; leases of {SHARD_BATCHES} batches",),
        details={"seconds": seconds, "heartbeat_s": spec.heartbeat_s},
    )
