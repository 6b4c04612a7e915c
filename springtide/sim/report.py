"""Computes the statistics of a simulation: completion times, completion rates, utilization and OOM kills.

In: a `Story`. Out: a `Summary`. Completion time includes the pending time of pods. The completion rate is the number
of finished jobs divided by the number of submitted jobs; each re-run counts as a submission. Utilization is the used
resources divided by the allocated resources, both integrated over time (001 §6).
"""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from rich import box as rich_box
from rich import console, table

from springtide import errors
from springtide.sim.engine.running_job import JobEnd, JobOutcome, Used
from springtide.sim.engine.simulation import Story

LARGE_CPU = 100.0
"""A job with fewer cores than this is small (000 §6.3)."""


class CompletionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that finished jobs took; None if no job finished."""

    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p90_s: float | None
    jct_p99_s: float | None
    pending_p50_s: float | None


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the allocated cores and bytes that was used; None without allocations or limits."""

    worker_cpu: float | None
    server_cpu: float | None
    cpu: float | None
    worker_memory: float | None
    server_memory: float | None
    memory: float | None


class TroubleShares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the submitted jobs."""

    oom: float
    """Share of jobs with at least one out-of-memory kill."""
    scheduling: float
    """Share of jobs that gave up waiting for pods."""
    slow_hot: float
    """Share of jobs that lost more than a tenth of their run time to a hot server."""
    slow_straggler: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a simulation."""

    submitted: int
    finished: int
    reruns: int
    completion: float
    completion_small: float | None
    """Completion rate of the jobs whose users requested less than 100 cores."""
    completion_large: float | None
    times: CompletionTimes
    used: Utilization
    trouble: TroubleShares
    changes: float
    """Mean number of plans that were carried out for a job."""
    scaling_s: float | None
    """Mean seconds from the start of a job to its last change."""
    failures: dict[str, int]

    def flat(self) -> dict[str, Any]:
        """Return all statistics without their groups, in the form that `simulate --json` prints."""
        found = msgspec.structs.asdict(self)
        for group in ("times", "used", "trouble"):
            found |= msgspec.structs.asdict(found.pop(group))
        return found


def summary(story: Story) -> Summary:
    outcomes = story.outcomes
    finished = [outcome for outcome in outcomes if outcome.end is JobEnd.FINISHED]
    times = [outcome.jct_s for outcome in finished]
    count = max(len(outcomes), 1)
    return Summary(
        submitted=len(outcomes),
        finished=len(finished),
        reruns=sum(outcome.job.tries > 0 for outcome in outcomes),
        completion=len(finished) / count,
        completion_small=completion(outcomes, lambda outcome: outcome.job.requested.cpu < LARGE_CPU),
        completion_large=completion(outcomes, lambda outcome: outcome.job.requested.cpu >= LARGE_CPU),
        times=CompletionTimes(
            jct_mean_s=float(np.mean(times)) if times else None,
            jct_p50_s=percentile(times, 50),
            jct_p90_s=percentile(times, 90),
            jct_p99_s=percentile(times, 99),
            pending_p50_s=percentile([outcome.pending_s for outcome in finished], 50),
        ),
        used=utilization(outcome.tally.used for outcome in outcomes),
        trouble=TroubleShares(
            oom=sum(outcome.tally.ooms > 0 for outcome in outcomes) / count,
            scheduling=sum(outcome.end is JobEnd.SCHEDULING for outcome in outcomes) / count,
            slow_hot=sum(_held_up(outcome) and outcome.job.faults.hot > 1 for outcome in outcomes) / count,
            slow_straggler=sum(_held_up(outcome) and outcome.job.faults.hot <= 1 for outcome in outcomes) / count,
        ),
        changes=sum(outcome.tally.changes for outcome in outcomes) / count,
        scaling_s=float(np.mean([outcome.scaling_s for outcome in finished])) if finished else None,
        failures={
            str(end): number
            for end in JobEnd
            if end is not JobEnd.FINISHED and (number := sum(outcome.end is end for outcome in outcomes))
        },
    )


def _held_up(outcome: JobOutcome) -> bool:
    return outcome.started_at is not None and outcome.tally.slow_s > 0.1 * (outcome.ended_at - outcome.started_at)


def completion(outcomes: Sequence[JobOutcome], which: Callable[[JobOutcome], bool]) -> float | None:
    chosen = [outcome for outcome in outcomes if which(outcome)]
    return sum(outcome.end is JobEnd.FINISHED for outcome in chosen) / len(chosen) if chosen else None


def percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None


def utilization(used: Iterable[Used]) -> Utilization:
    sums = {name: 0.0 for name in Used.__dataclass_fields__}
    for sample in used:
        for name in sums:
            sums[name] += getattr(sample, name)

    def share(*names: str) -> float | None:
        given = sum(sums[f"{name}_of"] for name in names)
        return sum(sums[name] for name in names) / given if given > 0 else None

    return Utilization(
        worker_cpu=share("worker_cpu"),
        server_cpu=share("server_cpu"),
        cpu=share("worker_cpu", "server_cpu"),
        worker_memory=share("worker_memory"),
        server_memory=share("server_memory"),
        memory=share("worker_memory", "server_memory"),
    )


WIDTH = 80


def show(summaries: Mapping[str, Summary], *, title: str) -> None:
    screen = console.Console(width=WIDTH, highlight=False, emoji=False)
    screen.print(title, style="bold")
    shown = table.Table(box=rich_box.SIMPLE)
    shown.add_column("")
    for name in summaries:
        shown.add_column(name, justify="right")
    for label, cells in lines(summaries):
        shown.add_row(label, *cells)
    screen.print(shown)


def lines(summaries: Mapping[str, Summary]) -> list[tuple[str, list[str]]]:
    values = list(summaries.values())
    return [
        ("submitted (re-runs)", [f"{summary.submitted} ({summary.reruns})" for summary in values]),
        ("finished", [f"{summary.completion:.1%}" for summary in values]),
        ("JCT, median", [duration(summary.times.jct_p50_s) for summary in values]),
        ("JCT, p90", [duration(summary.times.jct_p90_s) for summary in values]),
        ("JCT, p99", [duration(summary.times.jct_p99_s) for summary in values]),
        ("pending, median", [duration(summary.times.pending_p50_s) for summary in values]),
        ("CPU, workers", [share(summary.used.worker_cpu) for summary in values]),
        ("CPU, servers", [share(summary.used.server_cpu) for summary in values]),
        ("memory, workers", [share(summary.used.worker_memory) for summary in values]),
        ("memory, servers", [share(summary.used.server_memory) for summary in values]),
        ("out of memory", [f"{summary.trouble.oom:.2%}" for summary in values]),
        ("gave up waiting", [f"{summary.trouble.scheduling:.2%}" for summary in values]),
        ("slow: hot server", [f"{summary.trouble.slow_hot:.2%}" for summary in values]),
        ("slow: straggler", [f"{summary.trouble.slow_straggler:.2%}" for summary in values]),
        ("plans a job", [f"{summary.changes:.1f}" for summary in values]),
    ]


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def pyplot() -> Any:
    """Import matplotlib with a backend that needs no display."""
    try:
        import matplotlib
    except ImportError:
        raise errors.MissingExtra("a plot", "sim") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plots

    return plots


def check(path: pathlib.Path) -> None:
    """Raise an error if the picture cannot be written, before the simulation starts."""
    if path.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise errors.BadInput(f"--plot {path}: expected a file name that ends in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise errors.MissingFile(f"--plot {path}: there is no folder {path.absolute().parent}")
    pyplot()


def story(stories: Mapping[str, Story], path: pathlib.Path) -> None:
    plots = pyplot()
    from matplotlib import ticker

    figure, (times, held) = plots.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, events in stories.items():
        hours = sorted(outcome.jct_s / 3600 for outcome in events.outcomes if outcome.end is JobEnd.FINISHED)
        if hours:
            shares = [place / len(hours) for place in range(len(hours) + 1)]
            times.plot([hours[0], *hours], shares, drawstyle="steps-post", label=name)
        held.plot([at / 3600 for at, _, _ in events.held], [cpu for _, cpu, _ in events.held], label=name)
    times.set(xscale="log", xlabel="completion time, hours")
    times.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
    times.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    times.xaxis.set_minor_formatter(ticker.NullFormatter())
    times.set(ylabel="part of finished jobs", ylim=(0, 1.02))
    times.set_title("time of jobs from submission to end", fontsize=10)
    held.set(xlabel="hours since the first submission", ylabel="cores", ylim=(0, None))
    held.set_title("cores that jobs held", fontsize=10)
    for axis in (times, held):
        axis.spines[["top", "right"]].set_visible(False)
    held.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plots.close(figure)
