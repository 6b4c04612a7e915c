"""Computes the statistics of a simulation: completion times, completion rates, utilization and OOM kills.

In: a `Story`. Out: a `Summary`. Completion time includes pending time. Completion rate is finished over submitted jobs,
and a re-run counts as another submission. Utilization is used over allocated resources, integrated over time (001 §6).
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from springtide.sim.engine.job import JobEnd, JobOutcome, Used
from springtide.sim.engine.simulation import Story

LARGE_CPU = 100.0
"""Cores that separate small from large jobs (000 §6.3)."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a simulation."""

    submitted: int
    finished: int
    reruns: int
    completion: float
    completion_small: float | None
    """Completion rate of jobs whose users requested less than 100 cores."""
    completion_large: float | None
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p90_s: float | None
    jct_p99_s: float | None
    pending_p50_s: float | None
    worker_cpu: float | None
    """Used share of the workers' allocated cores."""
    server_cpu: float | None
    cpu: float | None
    worker_memory: float | None
    server_memory: float | None
    memory: float | None
    oom: float
    """Share of submitted jobs with at least one OOM."""
    scheduling: float
    """Share of submitted jobs that gave up waiting for pods."""
    slow_hot: float
    """Share of submitted jobs that lost more than a tenth of their run time to a hot server."""
    slow_straggler: float
    changes: float
    """Mean number of plans carried out per job."""
    scaling_s: float | None
    """Mean seconds from start to the last change."""
    failures: dict[str, int]


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
        completion_small=completion(outcomes, lambda one: one.job.requested.cpu < LARGE_CPU),
        completion_large=completion(outcomes, lambda one: one.job.requested.cpu >= LARGE_CPU),
        jct_mean_s=float(np.mean(times)) if times else None,
        jct_p50_s=percentile(times, 50),
        jct_p90_s=percentile(times, 90),
        jct_p99_s=percentile(times, 99),
        pending_p50_s=percentile([outcome.pending_s for outcome in finished], 50),
        **utilization(outcome.used for outcome in outcomes),
        oom=sum(outcome.ooms > 0 for outcome in outcomes) / count,
        scheduling=sum(outcome.end is JobEnd.SCHEDULING for outcome in outcomes) / count,
        slow_hot=sum(_held_up(outcome) and outcome.job.hot > 1 for outcome in outcomes) / count,
        slow_straggler=sum(_held_up(outcome) and outcome.job.hot <= 1 for outcome in outcomes) / count,
        changes=sum(outcome.changes for outcome in outcomes) / count,
        scaling_s=float(np.mean([outcome.scaling_s for outcome in finished])) if finished else None,
        failures={
            str(end): number
            for end in JobEnd
            if end is not JobEnd.FINISHED and (number := sum(outcome.end is end for outcome in outcomes))
        },
    )


def _held_up(outcome: JobOutcome) -> bool:
    return outcome.started_at is not None and outcome.slow_s > 0.1 * (outcome.ended_at - outcome.started_at)


def completion(outcomes: Sequence[JobOutcome], which: Callable[[JobOutcome], bool]) -> float | None:
    """Return the completion rate of the selected jobs: finished over submitted."""
    chosen = [outcome for outcome in outcomes if which(outcome)]
    return sum(outcome.end is JobEnd.FINISHED for outcome in chosen) / len(chosen) if chosen else None


def percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None


def utilization(used: Iterable[Used]) -> dict[str, float | None]:
    """Return used over allocated by role and resource; None without allocations or limits."""
    sums = {name: 0.0 for name in Used.__dataclass_fields__}
    for one in used:
        for name in sums:
            sums[name] += getattr(one, name)

    def share(*names: str) -> float | None:
        given = sum(sums[f"{name}_of"] for name in names)
        return sum(sums[name] for name in names) / given if given > 0 else None

    return {
        "worker_cpu": share("worker_cpu"),
        "server_cpu": share("server_cpu"),
        "cpu": share("worker_cpu", "server_cpu"),
        "worker_memory": share("worker_memory"),
        "server_memory": share("server_memory"),
        "memory": share("worker_memory", "server_memory"),
    }
