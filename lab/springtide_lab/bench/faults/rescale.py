"""Measure the cost of adding and removing a server for a training job: step times and gaps while slots move.

In: a real job whose workers record each step. Out: `p99_vs_before`, `longest_gap_vs_p99_step`, and `vs_stop_restart`,
against a real stop, start and restore.
"""

import functools
import itertools
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

BUCKET_S = 0.5
"""Length in seconds of the windows for rates: a few dozen steps long, and short compared with slow phases."""
SHARE = 0.9
"""Share of the full rate below which a job counts as slow."""


def rate(times: Sequence[float], begin: float, end: float) -> float:
    return float(np.count_nonzero((np.asarray(times) >= begin) & (np.asarray(times) < end))) / (end - begin)


def seconds_below(times: Sequence[float], begin: float, end: float, full: float) -> float:
    """Return the seconds between two moments in which the rate was below SHARE of the full rate."""
    edges = np.arange(begin, end + 1e-9, BUCKET_S)
    counts, _ = np.histogram(np.asarray(times), edges)
    return float(np.count_nonzero(counts < SHARE * full * BUCKET_S)) * BUCKET_S


def done_at(times: Sequence[float], begin: float, steps: int) -> float | None:
    """Return the time at which `steps` steps had ended since `begin`, or None if fewer have ended."""
    later = sorted(at for at in times if at >= begin)
    return later[steps - 1] if 0 < steps <= len(later) else None


DIM, SLOTS, WORKERS = 32, 1024, 2
PATIENCE_S = 600.0  # most seconds to wait for an event of the job; waiting does not change the measurements


@dataclass(frozen=True, slots=True)
class RescaleSizes:
    """Rows of the table, and seconds to measure before the change."""

    rows: int
    before_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of a period."""

    begin: float
    end: float


def bench(options: Options) -> report.Result:
    sizes = RescaleSizes(5_000, 2.0) if options.quick else RescaleSizes(400_000, 15.0)
    with harness.scratch() as folder:
        arguments = [folder, sizes.rows, DIM]
        rules = CheckpointRules(every_s=jobs.EVERY_S)
        with jobs.warmed_up() as warm, jobs.prepared(folder, jobs.SCRIPT, arguments, spec(2, rules), warm=warm) as job:
            harness.say("adding and removing a server")
            before, during, moves = live(job, folder, sizes)
            harness.say("stopping the job and starting it again")
            again = jobs.stop_job(job)
        with jobs.prepared(folder, jobs.SCRIPT, arguments, spec(3, again)) as job:
            job.until(lambda _: job.story, within_s=PATIENCE_S)
            resumed_at = float(str(job.story[0]["at"]))
            job.until(lambda _: jobs.merged(folder)[-1] > resumed_at, within_s=PATIENCE_S)
            first = next(at for at in jobs.merged(folder) if at > resumed_at)
        restart_s = first - max(at for at in jobs.merged(folder) if at < first) + options.restart_s
        return judge(folder, before, during, moves, restart_s, sizes)


def spec(servers: int, rules: CheckpointRules) -> JobSpec:
    return JobSpec(
        name="rescale", servers=servers, workers=WORKERS, slots=SLOTS, heartbeat_s=0.5, backoff_s=0.0, checkpoints=rules
    )


def live(
    job: LocalCluster, folder: pathlib.Path, sizes: RescaleSizes
) -> tuple[Span, list[Span], list[dict[str, object]]]:
    """Train, add a server, remove one; return the period before, the periods of both changes, and the slot moves."""
    job.until(lambda status: status.samples > 200 * jobs.BATCH, within_s=PATIENCE_S)
    began = time.time()
    time.sleep(sizes.before_s)
    before = Span(began, time.time())
    during = []
    for servers in (3, 2):
        asked, known = time.time(), len(job.moves())
        job.scale(servers=servers)
        job.until(functools.partial(job.settled, servers=servers, known=known), within_s=PATIENCE_S)
        during.append(Span(asked, time.time()))
    return before, during, job.moves()


def step_times(folder: pathlib.Path, spans: Sequence[Span]) -> list[float]:
    return [
        end - begin
        for worker in jobs.steps(folder)
        for begin, end in itertools.pairwise(worker)
        if any(span.begin <= end <= span.end for span in spans)
    ]


def longest_gap(folder: pathlib.Path, spans: Sequence[Span]) -> float:
    """Return the longest time within these spans in which no worker ended a step."""
    times = jobs.merged(folder)
    return max(
        end - begin for begin, end in itertools.pairwise(times) if any(span.begin <= end <= span.end for span in spans)
    )


def judge(
    folder: pathlib.Path,
    before: Span,
    during: Sequence[Span],
    moves: Sequence[dict[str, object]],
    restart_s: float,
    sizes: RescaleSizes,
) -> report.Result:
    calm, busy = step_times(folder, [before]), step_times(folder, during)
    p50, p99 = (float(np.quantile(calm, q)) for q in (0.5, 0.99))
    busy_p50, busy_p99 = (float(np.quantile(busy, q)) for q in (0.5, 0.99))
    gap, calm_gap = longest_gap(folder, during), longest_gap(folder, [before])
    freeze = max(float(str(event["longest_freeze_ms"])) for event in moves)
    slots = sum(int(str(event["slots"])) for event in moves)
    took = ", ".join(f"{span.end - span.begin:.1f} s" for span in during)
    return report.Result(
        goals=(
            report.goal("p99_vs_before", busy_p99 / p99, target=2.0, better="lower"),
            report.goal("longest_gap_vs_p99_step", gap / p99, target=3.0, better="lower"),
            report.goal("vs_stop_restart", restart_s / gap, target=20.0),
        ),
        rounds=len(during),
        columns=("what", "p50 ms", "p99 ms", "longest gap ms"),
        rows=(
            ("before", p50 * 1e3, p99 * 1e3, calm_gap * 1e3),
            ("while one server joins and one leaves", busy_p50 * 1e3, busy_p99 * 1e3, gap * 1e3),
            ("stop-restart", None, None, restart_s * 1e3),
        ),
        notes=(
            f"{WORKERS} workers, 2 servers to 3 and back; {sizes.rows:,} rows of {DIM} floats, Adagrad, {SLOTS} slots",
            f"{slots} slots moved, none without an owner for longer than {freeze:.2f} ms",
            f"the changes took {took}, with the start of a server",
        ),
    )
