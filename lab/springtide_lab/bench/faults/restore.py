"""Measure how soon training continues after `kill -9` of a server: checkpoint in memory against checkpoint in storage.

In: a real job with one large table. For every second kill, the server's segment files are removed and the copy at the
checkpoints' URL is dropped from the page cache. Out: `memory_vs_storage`, from the seconds between kill and next step.
"""

import os
import pathlib
import statistics
import time

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.rpc.messages.types import JobStatus
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

VICTIM = "server-1"
DIM = 64
PATIENCE_S = 300.0  # on a busy machine, creating the table alone takes a minute


def bench(options: Options) -> report.Result:
    rows, kills = (20_000, 2) if options.quick else (400_000, 6)
    seconds: dict[str, list[float]] = {"memory": [], "storage": []}
    with harness.scratch() as folder:
        rules = CheckpointRules(every_s=2.0, url=f"file://{folder / 'storage'}", upload_every_s=1.0)
        spec = JobSpec(
            name="restore", servers=2, workers=1, relaunches=1000, backoff_s=0.0, heartbeat_s=0.5, checkpoints=rules
        )
        with jobs.prepared(folder, jobs.SCRIPT, [folder, rows, DIM], spec) as job:
            for source in harness.track("kill -9 of a server", ["memory", "storage"] * (kills // 2)):
                seconds[source].append(one(job, folder, source))
            saved = largest(job)
    return judge(seconds, rows, saved)


def one(job: LocalCluster, folder: pathlib.Path, source: str) -> float:
    """Return the seconds from the kill to the first step after the server is back."""
    begun = job.status.checkpoints.number

    def saved(status: JobStatus) -> bool:
        return status.checkpoints.number > begun and uploaded(folder) > begun and bool(jobs.merged(folder))

    job.until(saved, within_s=PATIENCE_S)
    before = len(lives(job))
    if source == "storage":
        forget_pages(folder / "storage")
    killed_at = time.time()
    assert job.kill(VICTIM), f"{VICTIM} is not there"
    if source == "storage":
        for path in (job.files.root / "checkpoints").glob(f"{VICTIM}.*.seg"):
            path.unlink(missing_ok=True)
    job.until(lambda _: len(lives(job)) > before, within_s=PATIENCE_S)
    ready = lives(job)[-1]
    assert str(ready["where"]).startswith("file://") == (source == "storage"), f"not from {source}: {ready}"
    back = float(str(ready["at"]))
    job.until(lambda _: jobs.merged(folder) and jobs.merged(folder)[-1] > back)
    return next(at for at in jobs.merged(folder) if at > back) - killed_at


def lives(job: LocalCluster) -> list[dict[str, object]]:
    return [event for event in job.story if event["event"] == "ready" and event["role"] == VICTIM]


def uploaded(folder: pathlib.Path) -> int:
    names = sorted((folder / "storage").glob("manifest-*.ckpt"))
    return int(names[-1].stem.partition("-")[2]) if names else 0


def forget_pages(folder: pathlib.Path) -> None:
    """Drop these files from the page cache, so that the next read loads them from the disk."""
    for path in folder.iterdir():
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # an old file that the upload has just removed
            continue
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def largest(job: LocalCluster) -> int:
    """Return the size of the largest written checkpoint, in bytes."""
    told = [event for event in job.story if event["event"] == "checkpoint" and event["outcome"] == "complete"]
    return max((int(str(event["bytes"])) for event in told), default=0)


def judge(seconds: dict[str, list[float]], rows: int, saved: int) -> report.Result:
    memory, storage = (statistics.median(seconds[source]) for source in ("memory", "storage"))
    return report.Result(
        goals=(report.goal("memory_vs_storage", memory / storage, target=1.0, better="lower"),),
        rounds=len(seconds["memory"]),
        columns=("from kill -9 to the first step, seconds", "median", "quickest", "slowest"),
        rows=tuple((source, statistics.median(each), min(each), max(each)) for source, each in seconds.items()),
        notes=(
            f"a table of {rows:,} rows of {DIM} floats, Adagrad, 2 servers; {saved / 2**20:.0f} MiB a full checkpoint",
            "storage: the server's files were removed, and the copy at the URL (a folder) was not in the page cache",
        ),
        details={"seconds": seconds, "rows": rows, "checkpoint_bytes": saved},
    )
