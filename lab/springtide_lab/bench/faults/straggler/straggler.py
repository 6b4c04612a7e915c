"""One of four workers is throttled by a real CPU quota: how much longer than ideal does the job take?

In: real jobs on this machine (`testing.cluster`). At 3% every batch costs the same processor time; every worker has the
same quota at first, so that its pace is measured, and one has 3% of it then. At 25% the models of the paper are
trained, WideDeep and xDeepFM, and one worker has a quarter of its quota from its first batch on. Ideal is what is left
over the capacity that is left. Out: `jct_vs_ideal`, and beside it two baselines that are run too
(baselines.py): equal parts fixed beforehand, and stopping the job to start it again with healthy workers.
"""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from springtide_lab.bench import Options
from springtide_lab.bench.core import progress, report
from springtide_lab.bench.faults.restart_delays import Delays
from springtide_lab.bench.faults.straggler import straggler_job as jobs
from springtide_lab.bench.faults.straggler.baselines import Baseline, equal_parts, stop_and_restart
from springtide_lab.bench.faults.straggler.straggler_job import CPU, EVEN_PACE, ROLES, SLOW, WORKERS

TARGET = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of work, and how slow one of its workers becomes."""

    kind: str
    slow: float
    """Part of its quota that the slow worker is left."""
    beside: tuple[str, str]
    """What the paper says: how much shorter than equal parts (doing nothing), and than stop and restart."""

    def __str__(self) -> str:
        return f"{self.slow:.0%}" if self.kind == "even" else f"{self.slow:.0%} {self.kind}"

    @property
    def capacity(self) -> float:
        """Of all workers, in healthy ones."""
        return WORKERS - 1 + self.slow


HARD = Case(kind="even", slow=0.03, beside=("-48.5%", "-37%"))
MODELS = (
    Case(kind="WideDeep", slow=0.25, beside=("-24%", "")),
    Case(kind="xDeepFM", slow=0.25, beside=("-42%", "")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each part takes, at full quota."""

    even_s: float = 20.0
    """Before the throttling at 3%."""
    rest_s: float = 65.0
    runs: int = 3
    equal_s: float = 4.0
    """Work of equal parts at 3%: the slow one's quarter takes 25 times as long."""
    model_s: float = 36.0
    """All of a model's work; the slow one's equal part takes three times as long."""
    pace: float | None = None
    """Batches a second that a worker is taken to train of a model; None: it is tried."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A case: our jobs, and what they are shown beside."""

    case: Case
    runs: tuple[Run, ...]
    parts: Baseline
    restart: Baseline

    @property
    def ratio(self) -> float:
        """How much longer ours take than they have to."""
        return statistics.median(run.took_s / run.ideal_s for run in self.runs)


def bench(options: Options) -> report.Result:
    """Jobs at 3%, of which the median counts; one of each model at 25%; and the baselines of all."""
    quick = Sizes(even_s=4.0, rest_s=8.0, runs=1, equal_s=0.2, model_s=2.0, pace=20.0, notice_s=2.0)
    sizes = quick if options.quick else Sizes()
    delays = Delays.of(options.delays)
    notice_s = delays.notice_s if sizes.notice_s is None else sizes.notice_s
    total = sizes.runs + 2 + 4 * len(MODELS)
    with progress.bar("jobs with a straggler", total=total) as step:
        hard = hard_case(sizes, notice_s, step)
        models = [model_case(case, sizes, notice_s, step) for case in MODELS]
    return judge([hard, *models], delays)


def hard_case(sizes: Sizes, notice_s: float, step: Callable[[], None]) -> Outcome:
    """Throttled to next to nothing in the middle of the job."""
    slow, even_s = HARD.slow, sizes.even_s
    batches = round(EVEN_PACE * (even_s * WORKERS + sizes.rest_s * HARD.capacity))
    runs = []
    for _ in range(sizes.runs):
        runs.append(one("even", slow, batches, even_s=even_s))
        step()
    parts = equal_parts("even", slow, round(EVEN_PACE * sizes.equal_s * HARD.capacity))
    step()
    restart = stop_and_restart("even", slow, batches, even_s=even_s, notice_s=notice_s)
    step()
    return Outcome(case=HARD, runs=tuple(runs), parts=parts, restart=restart)


def model_case(case: Case, sizes: Sizes, notice_s: float, step: Callable[[], None]) -> Outcome:
    """A model of the zoo, with a slow worker from the first batch on: three ways to train the same data."""
    pace = jobs.tried_pace(case.kind) if sizes.pace is None else sizes.pace
    step()
    batches = max(WORKERS, round(pace * sizes.model_s * case.capacity))
    run = one(case.kind, case.slow, batches, even_s=0.0)
    step()
    parts = equal_parts(case.kind, case.slow, batches)
    step()
    restart = stop_and_restart(case.kind, case.slow, batches, even_s=0.0, notice_s=notice_s)
    step()
    return Outcome(case=case, runs=(run,), parts=parts, restart=restart)


def one(kind: str, slow: float, batches: int, *, even_s: float) -> Run:
    """A job that is throttled after a while."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "job"
        with jobs.started(folder, kind, batches) as job:
            jobs.until_ready(job, folder)
            jobs.throttle(job, dict.fromkeys(ROLES, CPU))
            jobs.go(folder)
            job.until(lambda _: all(jobs.trained(folder)))
            began = time.monotonic()
            time.sleep(even_s)
            throttled_wall = time.time()
            throttled_at = time.monotonic()
            jobs.throttle(job, {ROLES[SLOW]: CPU * slow})
            jobs.until_ended(job, 1800.0)
            decided = [float(str(event["at"])) for event in job.story if resized(event)]
        times = jobs.trained(folder)
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
    before = [jobs.pace(mine, began, throttled_at) for mine in times]
    after = [jobs.pace(mine, throttled_at, until) for mine in times]
    after[SLOW] = jobs.healthy_pace(times, throttled_at, until)
    return tuple(map(max, before, after))


def resized(event: Mapping[str, object]) -> bool:
    """Whether an event of the story is a decision about the slow worker's leases."""
    return event["event"] == "decision" and f"leases of {ROLES[SLOW]}" in str(event.get("what"))


def judge(outcomes: Sequence[Outcome], delays: Delays) -> report.Result:
    """The goal and the table."""
    hard = outcomes[0]
    noticed = [run.noticed_s for one in outcomes for run in one.runs if run.noticed_s is not None]
    return report.Result(
        goals=(report.goal("jct_vs_ideal", hard.ratio, target=TARGET, better="lower"),),
        rounds=len(hard.runs),
        columns=("CPU of worker-2", "seconds", "vs ideal", "ours is", "paper's is"),
        rows=tuple(row for one in outcomes for row in rows_of(one, delays)),
        notes=(
            f'{WORKERS} workers of {CPU} cores (quota); all are run; "ours is" compares times over the ideal of each',
            f"restart: stopped with a checkpoint, then {WORKERS} healthy workers; {delays}, added to what was run",
            '"paper\'s is": what the papers say of theirs on clusters, beside doing nothing and stop and restart: '
            f"DLRover-RM, Fig. 13 ({HARD.slow:.0%}), and DLRover, Fig. 8 ({MODELS[0].slow:.0%})",
            f"smaller leases {max(noticed):.0f} s after the throttling at the latest" if noticed else "never resized",
        ),
        details={"outcomes": outcomes, "delays": delays},
    )


def rows_of(one: Outcome, delays: Delays) -> Iterator[tuple[str | float | None, ...]]:
    """A case, beside the ideal and both baselines."""
    to_parts, to_restart = one.case.beside
    less = ", of less work" if one.case == HARD else ""
    restarted_s = one.restart.took_s + delays.idle_s
    for what, seconds, ideal, paper in (
        ("ideal", statistics.median(run.ideal_s for run in one.runs), 1.0, ""),
        ("ours", statistics.median(run.took_s for run in one.runs), one.ratio, ""),
        (f"equal parts{less}", one.parts.took_s, one.parts.ratio, to_parts),
        ("restart, delays 0", one.restart.took_s, one.restart.ratio, ""),
        ("restart", restarted_s, restarted_s / one.restart.ideal_s, to_restart),
    ):
        yield (f"{one.case}: {what}", seconds, ideal, f"{one.ratio / ideal - 1:+.0%}", paper)
