"""Pure. Lends cores of trainers that wait for data to data workers.

In: the queue state of each job, the cores that each trainer needs at full speed, and all cores of these jobs. Out:
cores for data workers (`allocation.allot`) and for the trainers of each job, together within the limit. A trainer at
half speed needs half of its cores. It keeps at least one unit. It gets its cores back in the round in which its data
workers get more.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from springtide.domain.plan.view import JobView
from springtide.planning.dataworkers.cluster import allocation
from springtide.planning.dataworkers.cluster.allocation import ROUNDING, CoreAllotment, CoreRules, FedJob, Metric

TRIES = 4


class TrainerCores(NamedTuple):
    """Number of trainers of one job, and the cores of each."""

    number: int
    needs: float
    """Cores of one trainer at full speed."""
    lends: bool = True
    """True if the need is known. A job that is still being tuned keeps its cores."""


class CoreSplit(NamedTuple):
    """Division of cores between data workers and trainers."""

    data_workers: CoreAllotment
    trainer_cpu: Mapping[str, float]
    """Cores of each trainer, by job."""


def keeps(trainers: TrainerCores, share: float, grain: float) -> float:
    """Return the cores that a trainer keeps at this share of its full speed."""
    if not trainers.lends:
        return trainers.needs
    wanted = math.ceil(trainers.needs * min(share, 1.0) / grain - ROUNDING) * grain
    return min(trainers.needs, max(wanted, grain))


def share(
    jobs: Sequence[FedJob],
    trainers: Mapping[str, TrainerCores],
    cpu: float,
    metric: Metric,
    rules: CoreRules | None = None,
) -> CoreSplit:
    """Divide the cores. If lending does not converge within TRIES rounds, no trainer lends."""
    rules = rules or CoreRules()
    kept = {job.name: keeps(trainers[job.name], _share(job, job.cpu), rules.grain) for job in jobs}
    for _ in range(TRIES):
        given = allocation.allot(jobs, max(0.0, cpu - _held(trainers, kept)), metric, rules)
        wanted = {job.name: keeps(trainers[job.name], _share(job, given.cores[job.name]), rules.grain) for job in jobs}
        if given.total + _held(trainers, wanted) <= cpu + ROUNDING:
            return CoreSplit(given, wanted)
        kept = {name: max(kept[name], wanted[name]) for name in kept}
    kept = {name: one.needs for name, one in trainers.items()}
    return CoreSplit(allocation.allot(jobs, max(0.0, cpu - _held(trainers, kept)), metric, rules), kept)


def _share(job: FedJob, cpu: float) -> float:
    return job.at(cpu) / job.capable if job.capable > 0 else 1.0


def _held(trainers: Mapping[str, TrainerCores], each: Mapping[str, float]) -> float:
    return sum(trainers[name].number * cpu for name, cpu in each.items())


GRAIN = 0.5
"""Unit of allocation in cores, because data workers on a small machine have only half a core."""


def shared(
    jobs: Iterable[JobView], before: Mapping[str, FedJob], cpu: float, metric: Metric
) -> tuple[CoreAllotment, dict[str, FedJob]]:
    """Divide the cores among the jobs that tune data workers."""
    known = {job.name: found for job in jobs if (found := fed(job, before.get(job.name))) is not None}
    return allocation.allot(list(known.values()), max(0.0, cpu), metric, CoreRules(grain=GRAIN)), known


def fed(job: JobView, before: FedJob | None) -> FedJob | None:
    """Return the job for the allocator; None if it tunes no data workers or reports invalid numbers."""
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
    """Return True if the report is valid. A master of another version may send any values."""
    numbers = (speed, capable, cpu, least)
    return trainers >= 1 and math.isfinite(sum(numbers)) and min(numbers) >= 0
