"""Pure. Cores of trainers that wait for data are lent to whoever makes it.

In: jobs as their queues show them, what a trainer of each needs at its fastest, and all cores that trainers and data
workers of these jobs may have. Out: cores of data workers (`cluster.allot`) and of a trainer of each job, together no
more than there are. A trainer that trains half as fast needs half of its cores; one at least stays with it, and it has
the others back in the round in which its data workers get more. Next: `placing` finds machines for the data workers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from springtide.planning.dataworkers.cluster import allocation
from springtide.planning.dataworkers.cluster.allocation import ROUNDING, CoreAllotment, CoreRules, FedJob, Metric

TRIES = 4


class TrainerCores(NamedTuple):
    """Of one job."""

    number: int
    needs: float
    """Cores of one at its fastest."""
    lends: bool = True
    """Whether that is known already: a job that is being tuned keeps what it has."""


class CoreSplit(NamedTuple):
    """Who has what."""

    data_workers: CoreAllotment
    trainer_cpu: Mapping[str, float]
    """Cores of one trainer of each job."""


def keeps(trainers: TrainerCores, share: float, grain: float) -> float:
    """Cores of one trainer at this share of its fastest."""
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
    """Share out so many cores. Where lending does not come to rest within some tries, nobody lends in this round."""
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
