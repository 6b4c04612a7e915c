"""Pure. Cores for data workers of all jobs of a brain: what jobs leave free, shared out by a metric.

In: views of jobs, those that tune data workers with a `FeedShare`; what was known of each before; the cores that
workers and servers of all jobs leave. Out: an `CoreAllotment`, and what is known of each by now. Next:
`brain.decide.cluster_state` tells each job its own with whatever else it is told; its master's tuning (`tune`) stays
below that.

Workers and servers come first: a job's data workers are the stateless part, which can be taken away and given back at
any time. So they have what is left, and less of it as jobs grow.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from springtide.domain.plan.view import JobView
from springtide.planning.dataworkers.cluster import allocation
from springtide.planning.dataworkers.cluster.allocation import CoreAllotment, CoreRules, FedJob, Metric

GRAIN = 0.5
"""Cores come in halves: a small machine's data workers have no more."""


def shared(
    jobs: Iterable[JobView], before: Mapping[str, FedJob], cpu: float, metric: Metric
) -> tuple[CoreAllotment, dict[str, FedJob]]:
    """Share out the cores among the jobs that tune data workers."""
    known = {job.name: found for job in jobs if (found := fed(job, before.get(job.name))) is not None}
    return allocation.allot(list(known.values()), max(0.0, cpu), metric, CoreRules(grain=GRAIN)), known


def fed(job: JobView, before: FedJob | None) -> FedJob | None:
    """One job as the cluster's level sees it; None: it tunes none, or says what makes no sense."""
    told = job.fed
    if told is None or not _sound(told.trainers, told.speed, told.capable, told.cpu, told.least):
        return None
    left = max(0.0, job.remaining / job.facts.batch)
    if before is None:
        return FedJob(
            name=job.name,
            gpus=told.trainers,
            speed=told.speed,
            capable=told.capable,
            cpu=told.cpu,
            least=told.least,
            steps_left=left,
            gain=told.speed / told.cpu if told.cpu > 0 else None,
        )
    now = allocation.corrected(before, speed=told.speed, capable=told.capable, cpu=told.cpu, steps_left=left)
    return replace(now, gpus=told.trainers, least=told.least)


def _sound(trainers: int, speed: float, capable: float, cpu: float, least: float) -> bool:
    """A master may be of another version, and say anything."""
    numbers = (speed, capable, cpu, least)
    return trainers >= 1 and math.isfinite(sum(numbers)) and min(numbers) >= 0
