"""Measure how long a job is slow after one of its two servers loses most of its CPU by a real quota.

In: real jobs whose workers record each step. In `ours` the job's guards act; in `stop-restart` the job is stopped and
started again with healthy servers. Out: seconds below 90% of the full rate (`degraded_vs_stop_restart`).
"""

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import GuardRules, JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report
from springtide_lab.bench.faults import rescale

TARGET = 0.2
LOOK_S, PATIENCE_S = 0.5, 300.0
WORKERS, VICTIM = 2, "server-1"
CPU, SHARE = 0.7, 0.03  # cores of each server, and the share of these cores that the throttled server keeps
DIM, IDS, PAUSE_S = 64, 256, 0.03
"""Row size, ids per sample, pause per step: 16 thousand keys per step, so that servers have enough work."""
PAPER = "36.4% shorter than without reaction, 27.6% shorter than stop-restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServerSizes:
    """Size of the table and durations of the job's parts."""

    rows: int = 40_000
    before_s: float = 8.0
    work_s: float = 30.0
    """Seconds of work at the full rate that remain when the server is throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServerRun:
    """Measurements of one job after the throttling of its server."""

    full: float
    """Steps per second before the throttling."""
    below_s: float
    took_s: float
    noticed_s: float


def bench(options: Options) -> report.Result:
    sizes = HotServerSizes(rows=5_000, before_s=3.0, work_s=8.0) if options.quick else HotServerSizes()
    harness.say("a job whose guards relieve the slow server")
    mine = ours(sizes)
    harness.say("a job that is stopped and started again")
    return judge(mine, stop_restart(sizes, notice_s=mine.noticed_s, more_s=options.restart_s), sizes)


def started(folder: pathlib.Path, sizes: HotServerSizes, rules: CheckpointRules, *, guarded: bool) -> LocalCluster:
    spec = JobSpec(
        name="hot",
        servers=2,
        workers=WORKERS,
        server_cpu=CPU,
        heartbeat_s=0.5,
        checkpoints=rules,
        guards=GuardRules(servers=guarded),
    )
    arguments = [folder, sizes.rows, DIM, IDS, PAUSE_S]
    return jobs.prepared(folder, jobs.SCRIPT, arguments, spec, grace_s=60.0)


def ours(sizes: HotServerSizes) -> HotServerRun:
    with harness.scratch() as folder:
        with started(folder, sizes, CheckpointRules(every_s=jobs.EVERY_S), guarded=True) as job:
            full = full_rate(job, folder, sizes)
            since = throttle(job)
            ended = until_done(job, folder, since, round(full * sizes.work_s))
            told = [event for event in job.story if event["event"] == "decision" and VICTIM in str(event["what"])]
        noticed = [at - since for event in told if (at := float(str(event["at"]))) > since]
        below_s = rescale.seconds_below(jobs.merged(folder), since, ended, full)
    return HotServerRun(full=full, below_s=below_s, took_s=ended - since, noticed_s=min(noticed, default=0.0))


def stop_restart(sizes: HotServerSizes, *, notice_s: float, more_s: float) -> HotServerRun:
    """Run the job without guards; stop and restart it when our guards would have noticed the slow server.

    `more_s` is the extra time of a restart on a cluster, in seconds.
    """
    with harness.scratch() as folder:
        with started(folder, sizes, CheckpointRules(every_s=jobs.EVERY_S), guarded=False) as job:
            full = full_rate(job, folder, sizes)
            since = throttle(job)
            job.until(lambda _: time.time() > since + notice_s)
            again = jobs.stop_job(job)
        with started(folder, sizes, again, guarded=False) as job:
            ended = until_done(job, folder, since, round(full * sizes.work_s))
        below_s = rescale.seconds_below(jobs.merged(folder), since, ended, full)
    return HotServerRun(full=full, below_s=below_s + more_s, took_s=ended - since + more_s, noticed_s=notice_s)


def full_rate(job: LocalCluster, folder: pathlib.Path, sizes: HotServerSizes) -> float:
    """Return the steps per second of the undisturbed job after its start."""
    known = len(jobs.merged(folder))
    wait(job, lambda: len(jobs.merged(folder)) > known + 150)
    began = time.time()
    job.until(lambda _: time.time() > began + sizes.before_s)
    return rescale.rate(jobs.merged(folder), began, time.time())


def wait(job: LocalCluster, true: Callable[[], object]) -> None:
    """Wait for a condition; check it rarely, because reading the workers' records takes CPU time from the job."""
    deadline = time.time() + PATIENCE_S
    while not true():
        assert not job.over and time.time() < deadline, f"not within {PATIENCE_S:g} s: {job.status}"
        time.sleep(LOOK_S)


def throttle(job: LocalCluster) -> float:
    """Reduce the CPU quota of the server to a small share; return the time."""
    since = time.time()
    jobs.hold(job, {VICTIM: CPU * SHARE})
    return since


def until_done(job: LocalCluster, folder: pathlib.Path, since: float, work: int) -> float:
    wait(job, lambda: rescale.done_at(jobs.merged(folder), since, work))
    return rescale.done_at(jobs.merged(folder), since, work) or time.time()


def judge(mine: HotServerRun, restart: HotServerRun, sizes: HotServerSizes) -> report.Result:
    ratio = mine.below_s / restart.below_s if restart.below_s else None
    return report.Result(
        goals=(report.goal("degraded_vs_stop_restart", ratio, target=TARGET, better="lower"),),
        rounds=1,
        columns=(f"server-1 has {SHARE:.0%} of its CPU", "below 90%, s", "work took, s"),
        rows=(
            ("ours", mine.below_s, mine.took_s),
            ("stop-restart", restart.below_s, restart.took_s),
        ),
        notes=(
            f"noticed after {mine.noticed_s:.1f} s; the paper: {PAPER}",
            f"work: {sizes.work_s:g} s at full rate, {mine.full:.0f} steps/s; servers of {CPU:g} cores",
            f"{sizes.rows:,} rows of {DIM} floats, Adagrad",
        ),
        details={"ours": mine, "stop_restart": restart},
    )
