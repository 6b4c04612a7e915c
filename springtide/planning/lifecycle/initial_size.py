"""Pure. Computes the initial size of a job from the measured usage of one worker and the servers (DLRover's Eqns 2-11).

In: cores that one worker uses, and cores that servers use per worker. Out: number of workers and servers, and their
cores, within C_total. Next: `planning.lifecycle.stages` turns them into plans, servers first.

    workers      = C_total / (w + s)                  Eqn 10
    server cores = C_total - workers * w              Eqn 11, in servers of 16 cores each
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import MemoryNeed, Shape, ShapeBounds
from springtide.domain.plan.view import PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import similarity

SPARE = 1.3
"""Memory of a worker, against what one was seen to use."""

NEARLY_ALL = 0.9
"""Of its cores: a worker that uses so much is not made smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNeed:
    """Measured resource usage per worker."""

    worker_cpu: float
    """w: cores that one worker uses."""
    server_cpu: float
    """s: cores that all servers together use for one worker."""
    worker_memory: int = 0
    """Bytes that one worker was seen to use; 0: nobody knows."""

    @property
    def sound(self) -> bool:
        return 0 < self.worker_cpu < math.inf and 0 < self.server_cpu < math.inf


def workers_and_cores(need: MeasuredNeed, total: float) -> tuple[int, float]:
    """Eqns 10 and 11: workers, and cores of all servers."""
    workers = max(1, math.floor(total / (need.worker_cpu + need.server_cpu)))
    return workers, max(total - workers * need.worker_cpu, need.server_cpu)


def servers_first(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """The shape now with as many server cores as the whole job will want, in servers of the usual size."""
    total = clamp.quota(bounds, config).cpu
    _, cores = workers_and_cores(need, total)
    each = min(config.server_cpu, bounds.most.server_cpu, max(cores, bounds.least.server_cpu))
    servers = max(1, math.floor(cores / each + 1e-9))
    right = replace(now, servers=servers, server_cpu=each)  # workers as they are: what they use is measured again
    return clamp.within(right, bounds, config)


def workers_then(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """As many workers as servers can serve (Eqn 4) within what the job may take (Eqn 3), each of the cores it uses."""
    total = clamp.quota(bounds, config).cpu
    held = now.servers * now.server_cpu
    _, cores = workers_and_cores(need, total)
    served = max(held, cores) / need.server_cpu
    cpu = worker_cores(now, need)
    paid = (total - held) / min(cpu, max(need.worker_cpu, 1e-9))
    workers = max(1, math.floor(min(served, paid) + 1e-9))
    memory = now.worker_memory
    if memory and need.worker_memory:
        memory = min(memory, math.ceil(SPARE * need.worker_memory))
    return clamp.within(replace(now, workers=workers, worker_cpu=cpu, worker_memory=memory), bounds, config)


def worker_cores(now: Shape, need: MeasuredNeed) -> float:
    """Whole cores, or tenths of one below one; what it has, where it uses nearly all of that and may want more."""
    if need.worker_cpu >= NEARLY_ALL * now.worker_cpu:
        return now.worker_cpu
    return float(math.ceil(need.worker_cpu)) if need.worker_cpu > 1 else math.ceil(need.worker_cpu * 10) / 10


def hot_server_cores(used_by_hot: float, used: float, given: float, most: float) -> float:
    """A hot server's part of all that servers are to do, in cores of all of them: what it should have."""
    return min(used_by_hot / used * given, most)


def extra_workers(used: float, given: float, workers: int, most: int) -> int:
    """For server cores that lie idle: what servers use for a worker, and how many more they could serve."""
    return max(0, min(math.floor(given / (used / workers) - workers + 1e-9), most))


Floats = NDArray[np.float64]
FEWEST = 8
"""Past jobs with a known need below which nothing is learned about what tells it: the most of all of them counts."""
ABOUT = 0.25
"""Doublings: past jobs that are expected to be off by no more than this, beside what is chance, are of one kind."""
STRANGERS = 48
"""To a job of a kind that is not known so many of the nearest count: of few, none need have needed as much as it."""
ROOM = 1.25
"""On top of all: two runs of one job differ by their data."""


def foretold(
    past: Sequence[PastJob], to_new: Mapping[str, Floats], told: similarity.DistanceModel | None
) -> MemoryNeed | None:
    """What a new job may need. `to_new`: [1, past] similarities a feature; `told`: what features say about needs."""
    known, rows = _needs(past)
    if not known.any():
        return None
    near, more = known, 1.0
    if told is not None:
        apart = np.where(known, told.apart(to_new)[0], np.inf)
        near = apart <= apart.min() + ABOUT
        more = 2.0**told.chance
        if apart.min() > told.chance + ABOUT:
            near = known & (apart <= np.sort(apart)[min(STRANGERS, int(known.sum())) - 1])
    some = [one.need for one, counts in zip(past, near.tolist(), strict=True) if counts]
    return MemoryNeed(
        worker=max(need.worker for need in some),
        server=max(need.server for need in some),
        rows=round(ROOM * more * float(rows[near].max())),
    )


def _needs(past: Sequence[PastJob]) -> tuple[NDArray[np.bool_], Floats]:
    """Whose need of rows is known, and how much it was."""
    known = np.array([one.need.rows > 0 for one in past], dtype=bool)
    return known, np.array([max(float(one.need.rows), 1.0) for one in past])


def told(past: Sequence[PastJob], among: Mapping[str, Floats]) -> similarity.DistanceModel | None:
    """How far needs are apart, in doublings, by how far jobs are. `among`: [past, past] similarities of the newest."""
    known, rows = _needs(past)
    if not among or int(known.sum()) < FEWEST:
        return None
    newest = next(iter(among.values())).shape[0]
    some, logs = known[-newest:], np.log2(rows[-newest:])
    pairs = np.tri(newest, k=-1, dtype=bool) & some[:, None] & some[None, :]
    if not pairs.any():
        return None
    return similarity.learn(among, np.abs(logs[:, None] - logs[None, :]), pairs)
