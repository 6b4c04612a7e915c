"""A policy that knows the truth: what could have been reached by deciding alone. Nothing real can be as good.

In: the true jobs, which it closes over. Out: a `Policy` with the signature of all others. Each job starts at once with
the fastest shape that its bounds and the free capacity allow, and stays with it.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from springtide.domain.plan import Decision, Plan, nothing
from springtide.domain.planning import PlanningConfig
from springtide.domain.shape import Bounds, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import ClusterView
from springtide.planning import equations
from springtide.planning.equations import Array, Shapes
from springtide.sim import systems
from springtide.sim.world import Job

NEARLY = 0.999
"""Of two shapes nearly as fast the cheaper one is taken."""


@lru_cache(maxsize=8)
def grid(bounds: Bounds) -> Shapes:
    """Shapes to choose from: all that policies choose from."""
    axes = (bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus)
    many = Shapes(*(np.asarray(axis, dtype=np.float64).ravel() for axis in np.meshgrid(*axes, indexing="ij")))
    fits = cpu_of(many) <= bounds.quota.cpu
    return Shapes(*(axis[fits] for axis in many))


def cpu_of(many: Shapes) -> Array:
    """Cores of each shape."""
    return many.workers * many.worker_cpu + many.servers * many.server_cpu


def true_steps_s(job: Job, many: Shapes) -> Array:
    """Steps a second of many shapes, as `world.speed` has them for one of a healthy job."""
    seconds = np.maximum(
        np.asarray(equations.step_seconds(job.coefficients, job.facts, many)), job.worker_core_s / many.worker_cpu
    )
    return np.minimum(many.workers / seconds, many.servers * many.server_cpu / job.server_core_s)


def best(job: Job, bounds: Bounds, *, cpu: float = np.inf) -> Shape:
    """The fastest shape within bounds and so many cores, with memory to the end."""
    many = grid(bounds)
    steps = np.where(cpu_of(many) <= cpu, true_steps_s(job, many), -1.0)
    fast = np.flatnonzero(steps >= NEARLY * steps.max())
    chosen = fast[np.argmin(cpu_of(many)[fast])]
    servers = int(many.servers[chosen])
    rows = min(1.0, job.hot / servers) * job.table_bytes
    return Shape(
        workers=int(many.workers[chosen]), servers=servers, worker_cpu=float(many.worker_cpu[chosen]),
        server_cpu=float(many.server_cpu[chosen]), worker_memory=int(job.worker_bytes * 1.01),
        server_memory=min(int((job.server_base_bytes + rows) * 1.01), bounds.most.server_memory),
    )  # fmt: skip


def oracle(jobs: Iterable[Job]) -> systems.System:
    """The system that knows these jobs."""
    known = {job.name: job for job in jobs}

    def policy(view: ClusterView, config: PlanningConfig) -> Decision:
        free = view.capacity.cpu
        plans = []
        for seen in view.jobs:
            if seen.shape is None and free >= seen.bounds.least.cpu:
                shape = best(known[seen.name.partition("~")[0]], seen.bounds, cpu=free)
                free -= shape.cpu
                plans.append(Plan(job=seen.name, shape=shape, reason="the truth is known", stage=Stage.ADJUSTING))
        return Decision(plans=tuple(plans), why="the truth is known") if plans else nothing("all run at their best")

    return systems.System(name="oracle", policy=policy)
