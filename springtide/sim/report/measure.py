"""Figures of a story: completion times, completion rates, utilization, memory kills. One definition of each for all.

In: a `Story`. Out: a `Summary`. Completion time includes pending; completion rate is finished over submitted, and a
re-run counts as another submitted job; utilization is used over allocated, integrated over time (001 §6).
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from springtide.sim.engine.job import JobEnd, JobOutcome, Used
from springtide.sim.engine.simulation import Story

LARGE_CPU = 100.0
"""000 §6.3 tells jobs below and above 100 CPUs apart."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation says in figures."""

    submitted: int
    finished: int
    reruns: int
    completion: float
    completion_small: float | None
    """Of jobs whose users asked for less than 100 cores."""
    completion_large: float | None
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p90_s: float | None
    jct_p99_s: float | None
    pending_p50_s: float | None
    worker_cpu: float | None
    """Used of what workers were given."""
    server_cpu: float | None
    cpu: float | None
    worker_memory: float | None
    server_memory: float | None
    memory: float | None
    oom: float
    """Of submitted jobs: memory ran out at least once."""
    scheduling: float
    """Of submitted jobs: gave up waiting."""
    slow_hot: float
    """Of submitted jobs: a hot server cost them more than a tenth of their run."""
    slow_straggler: float
    changes: float
    """Plans carried out, a job."""
    scaling_s: float | None
    """Mean time from start to the last change."""
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
    """Finished over submitted, of some jobs."""
    chosen = [outcome for outcome in outcomes if which(outcome)]
    return sum(outcome.end is JobEnd.FINISHED for outcome in chosen) / len(chosen) if chosen else None


def percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.percentile(values, share)) if len(values) else None


def utilization(used: Iterable[Used]) -> dict[str, float | None]:
    """Used over allocated, by role and resource; None where nothing was allocated, or without limits."""
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
