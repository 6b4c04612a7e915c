"""One of two servers loses most of its CPU in the middle of a job, by a real quota: how long is the job held up?

In: real jobs whose workers write down each step. Ours: the job's own guards act; `stop-restart`: stopped and started
again with healthy servers; `nothing`. Out: seconds below 90% of the full rate (`degraded_vs_stop_restart`).
"""

import pathlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import GuardRules, JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report
from springtide_lab.bench.faults import rescale

TARGET = 0.2
LOOK_S, PATIENCE_S = 0.5, 300.0
WORKERS, VICTIM = 2, "server-1"
DIM, IDS, PAUSE_S = 64, 256, 0.03
"""Of a sample, of a step: 16 thousand keys a step, so that servers have something to do."""
PAPER = {0.03: "36.4% shorter than nothing, 27.6% than stop-restart", 0.25: "42% (WideDeep), 25% (xDeepFM) shorter"}
USUAL_DELAYS = {"save": 300.0, "start": 300.0, "load": 300.0}
"""Seconds; the paper has 5 to 10 minutes of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServerCase:
    """How much of its CPU the server is left."""

    share: float
    cpu: float
    """Cores of each server before that. At 25% so few that it misses them."""


CASES = (HotServerCase(share=0.03, cpu=0.7), HotServerCase(share=0.25, cpu=0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServerSizes:
    """How large, and how long each part takes."""

    rows: int = 40_000
    before_s: float = 8.0
    idle_s: float = 8.0
    """Of doing nothing: what is measured in it is carried on."""
    work_s: float = 30.0
    """At the full rate, from the throttling on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServerRun:
    """What became of one job after its server was throttled."""

    full: float
    """Steps a second before."""
    below_s: float
    took_s: float
    noticed_s: float = 0.0
    decisions: tuple[str, ...] = field(default=())


def bench(options: Options) -> report.Result:
    sizes = HotServerSizes(rows=5_000, before_s=3.0, idle_s=3.0, work_s=8.0) if options.quick else HotServerSizes()
    delays = jobs.delays_of(options.delays, USUAL_DELAYS)
    runs: dict[float, dict[str, HotServerRun]] = {}
    with harness.bar("a job with a slow server", total=2 * len(CASES)) as step:
        for case in CASES:
            mine = ours(case, sizes)
            step()
            nothing, restart = baselines(case, sizes, notice_s=mine.noticed_s)
            step()
            runs[case.share] = {"ours": mine, "stop-restart": restart, "nothing": nothing}
    return judge(runs, delays, sizes)


def started(
    folder: pathlib.Path, case: HotServerCase, sizes: HotServerSizes, rules: CheckpointRules, *, guarded: bool
) -> LocalCluster:
    spec = JobSpec(
        name="hot",
        servers=2,
        workers=WORKERS,
        server_cpu=case.cpu,
        heartbeat_s=0.5,
        checkpoints=rules,
        guards=GuardRules(servers=guarded),
    )
    arguments = [folder, sizes.rows, DIM, IDS, PAUSE_S]
    return jobs.prepared(folder, jobs.SCRIPT, arguments, spec, grace_s=60.0)


def ours(case: HotServerCase, sizes: HotServerSizes) -> HotServerRun:
    rules = CheckpointRules(every_s=jobs.EVERY_S)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with started(folder, case, sizes, rules, guarded=True) as job:
            full = full_rate(job, folder, sizes)
            since = throttle(job, case.cpu * case.share)
            ended = until_done(job, folder, since, round(full * sizes.work_s))
            told = [event for event in job.story if event["event"] == "decision" and float(str(event["at"])) > since]
            job.stop("measured")
            job.wait()
        noticed = [float(str(event["at"])) - since for event in told if VICTIM in str(event["what"])]
        return HotServerRun(
            full=full,
            below_s=rescale.seconds_below(jobs.merged(folder), since, ended, full),
            took_s=ended - since,
            noticed_s=min(noticed, default=0.0),
            decisions=tuple(str(e["what"]) for e in told),
        )


def baselines(case: HotServerCase, sizes: HotServerSizes, *, notice_s: float) -> tuple[HotServerRun, HotServerRun]:
    """The same job without guards: left alone for a while; then, throttled once more, stopped and started again."""
    rules = CheckpointRules(every_s=jobs.EVERY_S)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with started(folder, case, sizes, rules, guarded=False) as job:
            full = full_rate(job, folder, sizes)
            work = round(full * sizes.work_s)
            since = throttle(job, case.cpu * case.share)
            job.until(lambda _: time.time() > since + sizes.idle_s)
            slow = max(rescale.rate(jobs.merged(folder), since + 1.0, time.time()), 1e-3)
            nothing = HotServerRun(full=full, took_s=work / slow, below_s=work / slow if slow < 0.9 * full else 0.0)
            throttle(job, case.cpu)
            full = full_rate(job, folder, sizes)
            since = throttle(job, case.cpu * case.share)
            job.until(lambda _: time.time() > since + notice_s)
            again = jobs.stop_job(job)
        with started(folder, case, sizes, again, guarded=False) as job:
            ended = until_done(job, folder, since, work)
            job.stop("measured")
            job.wait()
        below_s = rescale.seconds_below(jobs.merged(folder), since, ended, full)
        return nothing, HotServerRun(full=full, below_s=below_s, took_s=ended - since, noticed_s=notice_s)


def full_rate(job: LocalCluster, folder: pathlib.Path, sizes: HotServerSizes) -> float:
    """Steps a second of the undisturbed job, once it is under way."""
    known = len(jobs.merged(folder))
    wait(job, lambda: len(jobs.merged(folder)) > known + 150)
    began = time.time()
    job.until(lambda _: time.time() > began + sizes.before_s)
    return rescale.rate(jobs.merged(folder), began, time.time())


def wait(job: LocalCluster, true: Callable[[], object]) -> None:
    """Look now and then: reading what all workers have noted costs the processor that they need."""
    deadline = time.time() + PATIENCE_S
    while not true():
        assert not job.over and time.time() < deadline, f"not within {PATIENCE_S:g} s: {job.status}"
        time.sleep(LOOK_S)


def throttle(job: LocalCluster, cpu: float) -> float:
    """Hold the server to so many cores; the moment."""
    since = time.time()
    jobs.hold(job, {VICTIM: cpu})
    return since


def until_done(job: LocalCluster, folder: pathlib.Path, since: float, work: int) -> float:
    wait(job, lambda: rescale.done_at(jobs.merged(folder), since, work))
    return rescale.done_at(jobs.merged(folder), since, work) or time.time()


def judge(runs: dict[float, dict[str, HotServerRun]], delays: dict[str, float], sizes: HotServerSizes) -> report.Result:
    rows: list[report.Cells] = []
    idle_s = sum(delays.values())
    notes = []
    for share, some in runs.items():
        mine, restart = some["ours"], some["stop-restart"]

        def row(what: str, below_s: float, took_s: float, share: float = share, mine: HotServerRun = mine) -> None:
            rows.append((f"{share:.0%}: {what}", below_s, took_s, f"{mine.took_s / took_s - 1:+.1%}"))

        row("ours", mine.below_s, mine.took_s)
        row("stop-restart, delays 0", restart.below_s, restart.took_s)
        row("stop-restart", restart.below_s + idle_s, restart.took_s + idle_s)
        row("nothing", some["nothing"].below_s, some["nothing"].took_s)
        notes.append(f"{share:.0%}: noticed after {mine.noticed_s:.1f} s; the paper: {PAPER[share]}")
    worst = runs[CASES[0].share]
    ratio = worst["ours"].below_s / worst["stop-restart"].below_s if worst["stop-restart"].below_s else None
    cpu = ", ".join(f"{case.cpu:g} cores at {case.share:.0%}" for case in CASES)
    return report.Result(
        goals=(report.goal("degraded_vs_stop_restart", ratio, target=TARGET, better="lower"),),
        rounds=1,
        columns=("server-1 has this much CPU", "below 90%, s", "work took, s", "ours is"),
        rows=tuple(rows),
        notes=(
            *notes,
            f"work: {sizes.work_s:g} s at full rate, {worst['ours'].full:.0f} steps/s; servers of {cpu}",
            f"{sizes.rows:,} rows of {DIM} floats, Adagrad; nothing: its pace over {sizes.idle_s:g} s, carried on",
            jobs.delays_text(delays),
        ),
        details={"runs": {f"{share:g}": some for share, some in runs.items()}, "delays": delays},
    )
