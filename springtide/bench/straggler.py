"""One of four workers is throttled in the middle of a job by a real CPU quota: how much longer than ideal does it take?

In: real jobs on this machine (`testing.cluster`). Every batch costs the same processor time, and every worker has the
same quota at first, so that its pace is measured; then one has 3% of it (once more: 25%). Ideal is what is left over
the capacity that is left. Out: `jct_vs_ideal`, and beside it two baselines that are run too (straggler_baselines.py):
equal parts fixed beforehand, and stopping the job to start it again with healthy workers.
"""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

from springtide.bench import Options, progress, report
from springtide.bench.restart_delays import Delays
from springtide.bench.straggler_baselines import Baseline, equal_parts, stop_and_restart
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

TARGET = 1.15
SHARES = (0.03, 0.25)
PAPER = {0.03: "48.5% shorter than nothing, 37% than stop and restart", 0.25: "24% (WideDeep), 42% (xDeepFM) shorter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each part takes, at full quota."""

    even_s: float = 20.0
    rest_s: float = 75.0
    runs: int = 3
    equal_s: tuple[float, float] = (4.0, 20.0)
    """Work of equal parts at each share: the slow one's quarter takes 25 and 3 times as long."""
    notice_s: float | None = None
    """Until the job is stopped to be started again; None: as the delays say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job."""

    slow: float
    """Part of its quota that the slow worker was left."""
    paces: tuple[float, ...]
    """Batches a second of each worker at its full quota: before, or while the slow one was slow, whichever is more."""
    left: int
    """Batches when it was throttled."""
    took_s: float
    """From then to the last batch."""
    noticed_s: float | None
    """From then to the first decision about the slow worker."""

    @property
    def capacity(self) -> tuple[float, ...]:
        """Batches a second that each worker could train since."""
        return tuple(pace * (self.slow if rank == SLOW else 1.0) for rank, pace in enumerate(self.paces))

    @property
    def ideal_s(self) -> float:
        """Work over capacity."""
        return self.left / sum(self.capacity)


def bench(options: Options) -> report.Result:
    """Jobs at 3%, the median counts; one at 25%; and the baselines at both."""
    quick = Sizes(even_s=6.0, rest_s=15.0, runs=1, equal_s=(0.4, 2.0), notice_s=3.0)
    sizes = quick if options.quick else Sizes()
    delays = Delays.of(options.delays)
    notice_s = delays.notice_s if sizes.notice_s is None else sizes.notice_s
    runs: list[Run] = []
    parts: dict[float, Baseline] = {}
    restarts: dict[float, Baseline] = {}
    with progress.bar("a job with a straggler", total=sizes.runs + 1 + 2 * len(SHARES)) as step:
        for slow in (*[SHARES[0]] * sizes.runs, *SHARES[1:]):
            runs.append(one(slow, sizes))
            step()
        for slow, work_s in zip(SHARES, sizes.equal_s, strict=True):
            parts[slow] = equal_parts(slow, work_s)
            step()
            restarts[slow] = stop_and_restart(slow, even_s=sizes.even_s, work_s=sizes.rest_s, notice_s=notice_s)
            step()
    return judge(runs, parts, restarts, delays)


def one(slow: float, sizes: Sizes) -> Run:
    """A job that is throttled after a while."""
    batches = batches_of(sizes.even_s, WORKERS) + batches_of(sizes.rest_s, WORKERS - 1 + slow)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with started(folder, batches) as job:
            until_ready(job, folder)
            throttle(job, dict.fromkeys(ROLES, CPU))
            go(folder)
            job.until(lambda _: all(trained(folder)))
            began = time.monotonic()
            time.sleep(sizes.even_s)
            throttled_wall = time.time()
            throttled_at = time.monotonic()
            throttle(job, {ROLES[SLOW]: CPU * slow})
            until_ended(job, 20 * sizes.rest_s)
            decided = [float(str(event["at"])) for event in job.story if resized(event)]
        times = trained(folder)
    assert sum(map(len, times)) == batches, "not every batch was trained once"
    return Run(
        slow=slow,
        paces=full_paces(times, began, throttled_at),
        left=sum(at >= throttled_at for mine in times for at in mine),
        took_s=max(max(mine) for mine in times) - throttled_at,
        noticed_s=min((at for at in decided if at > throttled_wall), default=throttled_wall) - throttled_wall or None,
    )


def full_paces(times: list[list[float]], began: float, throttled_at: float) -> tuple[float, ...]:
    """The better of two, so that a neighbour who disturbs one of the two phases does not make the ideal look worse."""
    later = sorted(at for mine in times for at in mine if at >= throttled_at)
    until = later[int(0.8 * len(later))]  # by the end, some may have nothing to do
    before = [pace(mine, began, throttled_at) for mine in times]
    after = [pace(mine, throttled_at, until) for mine in times]
    after[SLOW] = statistics.mean(one for rank, one in enumerate(after) if rank != SLOW)
    return tuple(map(max, before, after))


def resized(event: Mapping[str, object]) -> bool:
    """Whether an event of the story is a decision about the slow worker's leases."""
    return event["event"] == "decision" and f"leases of {ROLES[SLOW]}" in str(event.get("what"))


def judge(
    runs: list[Run], parts: Mapping[float, Baseline], restarts: Mapping[float, Baseline], delays: Delays
) -> report.Result:
    """The goal and the table."""
    rows: list[tuple[str | float | None, ...]] = []
    for slow in SHARES:
        some = [run for run in runs if run.slow == slow]
        ours = statistics.median(run.took_s / run.ideal_s for run in some)
        part, restart = parts[slow], restarts[slow]
        for what, seconds, ideal in (
            ("ideal", statistics.median(run.ideal_s for run in some), 1.0),
            ("ours", statistics.median(run.took_s for run in some), ours),
            ("equal parts, of less work", part.took_s, part.ratio),
            ("stop and restart, delays 0", restart.took_s, restart.ratio),
            ("stop and restart", restart.took_s + delays.idle_s, (restart.took_s + delays.idle_s) / restart.ideal_s),
        ):
            rows.append((f"{slow:.0%}: {what}", seconds, ideal, f"{ours / ideal - 1:+.0%}"))
    ratios = [run.took_s / run.ideal_s for run in runs if run.slow == SHARES[0]]
    noticed = [run.noticed_s for run in runs if run.noticed_s is not None]
    return report.Result(
        goals=(report.goal("jct_vs_ideal", statistics.median(ratios), target=TARGET, better="lower"),),
        rounds=len(ratios),
        columns=("worker-2 has this much CPU", "seconds", "vs ideal", "ours is"),
        rows=tuple(rows),
        notes=(
            f'{WORKERS} workers of {CPU} cores (quota); all are run; "ours is" compares times over the ideal of each',
            f"{delays}; the restarted job has {WORKERS} healthy workers, and its delays are added to what was run",
            *(f"the paper at {slow:.0%}: {said}" for slow, said in PAPER.items()),
            f"smaller leases {max(noticed):.0f} s after the throttling at the latest" if noticed else "never resized",
        ),
        details={"runs": runs, "equal parts": parts, "restarts": restarts, "delays": delays},
    )
