"""Oracle policy that knows the true jobs: an upper bound for decisions alone.

In: the true jobs. Out: a `Policy` with the usual signature. Each job starts at once with the fastest shape within its
bounds and the free capacity, and keeps this shape. Large pods may wait longer for a node, so a short job may finish
sooner in a slower shape. `soonest` includes these waits, so no real policy can be as good.
"""

from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Shapes
from springtide.sim.engine import systems
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob

QUANTILES = 64
NEARLY = 0.999
"""Share of the best speed at which the cheaper of two shapes wins."""


@lru_cache(maxsize=8)
def grid(bounds: ShapeBounds) -> Shapes:
    axes = (bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus)
    many = Shapes(*(np.asarray(axis, dtype=np.float64).ravel() for axis in np.meshgrid(*axes, indexing="ij")))
    fits = cpu_of(many) <= bounds.quota.cpu
    return Shapes(*(axis[fits] for axis in many))


def cpu_of(many: Shapes) -> Array:
    return many.workers * many.worker_cpu + many.servers * many.server_cpu


def true_steps_s(job: TrueJob, many: Shapes) -> Array:
    """Return the steps per second of many shapes of a healthy job, as `world.speed` does for one shape."""
    seconds = np.maximum(
        np.asarray(equations.step_seconds(job.coefficients, job.facts, many)), job.worker_core_s / many.worker_cpu
    )
    return np.minimum(many.workers / seconds, many.servers * many.server_cpu / job.server_core_s)


@lru_cache(maxsize=8)
def waits(bounds: ShapeBounds, world: ClusterWorld) -> Array:
    """Return the expected pending seconds of each shape's pods; the role with the longer wait counts."""
    many = grid(bounds)
    draws = [(place + 0.5) / QUANTILES for place in range(QUANTILES)]

    def of_slowest(pods: int) -> float:
        slowest = [world.pending_spread * NormalDist().inv_cdf(draw ** (1 / pods)) for draw in draws]
        return world.pending_s_a_core * float(np.mean(np.exp(slowest)))

    roles = ((many.workers, many.worker_cpu), (many.servers, many.server_cpu))
    found = []
    for counts, cores in roles:
        number, which = np.unique(counts, return_inverse=True)
        found.append(np.array([of_slowest(int(pods)) for pods in number])[which] * cores)
    return np.asarray(np.maximum(*found))


def best(job: TrueJob, bounds: ShapeBounds, *, cpu: float = np.inf, world: ClusterWorld | None = None) -> Shape:
    """Return the fastest shape within the bounds and `cpu` cores, with enough memory to the end. With `world`, return
    the shape that finishes first.
    """
    many = grid(bounds)
    steps = true_steps_s(job, many)
    if world is not None:
        steps = job.samples / (job.samples / steps + job.facts.batch * waits(bounds, world))
    steps = np.where(cpu_of(many) <= cpu, steps, -1.0)
    fast = np.flatnonzero(steps >= NEARLY * steps.max())
    chosen = fast[np.argmin(cpu_of(many)[fast])]
    servers = int(many.servers[chosen])
    rows = min(1.0, job.hot / servers) * job.table_bytes
    return Shape(
        workers=int(many.workers[chosen]),
        servers=servers,
        worker_cpu=float(many.worker_cpu[chosen]),
        server_cpu=float(many.server_cpu[chosen]),
        worker_memory=int(job.worker_bytes * 1.01),
        server_memory=min(int((job.server_base_bytes + rows) * 1.01), bounds.most.server_memory),
    )


def soonest(jobs: Iterable[TrueJob], world: ClusterWorld) -> systems.System:
    """Return the system that knows these jobs and the pending times of pods."""
    return oracle(jobs, world=world)


def oracle(jobs: Iterable[TrueJob], *, world: ClusterWorld | None = None) -> systems.System:
    known = {job.name: job for job in jobs}

    def policy(view: ClusterView, config: PlanningConfig) -> Decision:
        free = view.capacity.cpu
        plans = []
        for seen in view.jobs:
            if seen.shape is None and free >= seen.bounds.least.cpu:
                shape = best(known[seen.name.partition("~")[0]], seen.bounds, cpu=free, world=world)
                free -= shape.cpu
                plans.append(
                    ShapePlan(job=seen.name, shape=shape, reason="the truth is known", stage=PlanningStage.ADJUSTING)
                )
        return Decision(plans=tuple(plans), why="the truth is known") if plans else nothing("all run at their best")

    return systems.System(name="oracle", policy=policy)
