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
"""Memory of a worker as a multiple of the measured usage."""

NEARLY_ALL = 0.9
"""Share of its cores in use at which a worker is not made smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNeed:
    """Measured resource usage per worker."""

    worker_cpu: float
    """w: cores that one worker uses."""
    server_cpu: float
    """s: cores that all servers together use per worker."""
    worker_memory: int = 0
    """Bytes that one worker used; 0 means unknown."""

    @property
    def sound(self) -> bool:
        return 0 < self.worker_cpu < math.inf and 0 < self.server_cpu < math.inf


def workers_and_cores(need: MeasuredNeed, total: float) -> tuple[int, float]:
    """Return the workers and the total server cores (Eqns 10 and 11)."""
    workers = max(1, math.floor(total / (need.worker_cpu + need.server_cpu)))
    return workers, max(total - workers * need.worker_cpu, need.server_cpu)


def servers_first(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """Return the current shape with the server cores that the whole job will need, in servers of the usual size."""
    total = clamp.quota(bounds, config).cpu
    _, cores = workers_and_cores(need, total)
    each = min(config.server_cpu, bounds.most.server_cpu, max(cores, bounds.least.server_cpu))
    servers = max(1, math.floor(cores / each + 1e-9))
    # workers stay unchanged, because their usage is measured again
    right = replace(now, servers=servers, server_cpu=each)
    return clamp.within(right, bounds, config)


def workers_then(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """Return the workers that servers can serve (Eqn 4) within the quota (Eqn 3), each with the cores it uses."""
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
    """Return whole cores, or tenths below one core. A worker that uses nearly all its cores keeps them."""
    if need.worker_cpu >= NEARLY_ALL * now.worker_cpu:
        return now.worker_cpu
    return float(math.ceil(need.worker_cpu)) if need.worker_cpu > 1 else math.ceil(need.worker_cpu * 10) / 10


def hot_server_cores(used_by_hot: float, used: float, given: float, most: float) -> float:
    """Return the cores that a hot server should have, in proportion to its share of the servers' work."""
    return min(used_by_hot / used * given, most)


def extra_workers(used: float, given: float, workers: int, most: int) -> int:
    """Return the extra workers that idle server cores could serve."""
    return max(0, min(math.floor(given / (used / workers) - workers + 1e-9), most))


Floats = NDArray[np.float64]
FEWEST = 8
"""Number of past jobs with known needs below which nothing is learned; the largest need then counts."""
ABOUT = 0.25
"""Distance in doublings, beyond chance, within which past jobs count as one kind."""
STRANGERS = 48
"""Number of nearest past jobs that count for a job of unknown kind. With fewer, all of them might have needed less
memory."""
ROOM = 1.25
"""Margin on the prediction, because two runs of one job differ in their data."""


def foretold(
    past: Sequence[PastJob], to_new: Mapping[str, Floats], told: similarity.DistanceModel | None
) -> MemoryNeed | None:
    """Predict the memory need of a new job; None without known needs.

    `to_new` has [1, past] similarities per feature. `told` is the model that predicts needs from features.
    """
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
    """Return which jobs have a known need for rows, and the need in bytes."""
    known = np.array([one.need.rows > 0 for one in past], dtype=bool)
    return known, np.array([max(float(one.need.rows), 1.0) for one in past])


def told(past: Sequence[PastJob], among: Mapping[str, Floats]) -> similarity.DistanceModel | None:
    """Learn how needs differ, in doublings, by the features of jobs. `among` has [past, past] similarities of the
    newest jobs."""
    known, rows = _needs(past)
    if not among or int(known.sum()) < FEWEST:
        return None
    newest = next(iter(among.values())).shape[0]
    some, logs = known[-newest:], np.log2(rows[-newest:])
    pairs = np.tri(newest, k=-1, dtype=bool) & some[:, None] & some[None, :]
    if not pairs.any():
        return None
    return similarity.learn(among, np.abs(logs[:, None] - logs[None, :]), pairs)
