"""Systems to compare: a policy that decides, and mechanisms that carry out plans and repair faults.

In: a policy and its name. Out: a `System`. The policies are real code. The mechanisms follow the papers: Kubeflow
cannot change a running job, an elastic scheduler restarts the job for a change, and Springtide changes the job while it
trains.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np

from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Shapes
from springtide.planning.policy.acceptance import Policy
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob


class ServerChange(StrEnum):
    """How a system changes the number of servers; this determines the cost of the change."""

    RESTART = "restart"
    """Stop, save to remote storage, prepare, and load (000 §2.2)."""
    INITIALIZE = "initialize"
    """Train while the pods start, then rebuild the graph (001 §6.3)."""
    LIVE = "live"
    """Continue to train, with a short pause for a copy through memory (000 §5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """Abilities of a runtime."""

    elastic: bool = True
    """The runtime changes shapes and replaces lost pods. If False, a lost pod fails the job."""
    dynamic_shards: bool = True
    """True if workers lease shards when they need them. If False, each worker has an equal part of the data from the
    start.
    """
    servers: ServerChange = ServerChange.LIVE
    relieves: bool = True
    """The runtime detects and relieves hot servers and stragglers."""
    foresees: bool = True
    """The runtime forecasts memory needs (`planning.guards.memory`) and shows them to the policy."""

    def pause_s(self, world: ClusterWorld) -> float:
        if self.servers is ServerChange.RESTART:
            return world.changes.checkpoint_s + world.changes.prepare_s + world.changes.load_s
        return world.pods.init_s if self.servers is ServerChange.INITIALIZE else world.changes.live_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A policy with its mechanisms and intervals."""

    name: str
    policy: Policy
    mechanisms: Mechanisms = field(default_factory=Mechanisms)
    every_s: float = 60.0
    """Seconds between two calls of the policy."""
    again_s: float = 600.0
    """If nothing happened to a job, the policy sees the job again after this many seconds at the earliest."""
    rarely: float = 0.25
    """The minimum interval between two changes, as a share of the time since the job's last change."""


KUBEFLOW = Mechanisms(elastic=False, dynamic_shards=False, servers=ServerChange.RESTART, relieves=False, foresees=False)


def system(name: str, policy: Policy) -> System:
    """Return the system of a policy. `static` gets Kubeflow's mechanisms, and any other policy gets Springtide's."""
    return System(name=name, policy=policy, mechanisms=KUBEFLOW if name == "static" else Mechanisms())


Waits = Callable[[ShapeBounds], Array]
"""Function that returns the pending seconds of each shape in the `grid` of the bounds."""
NEARLY = 0.999
"""Share of the best speed. The system chooses the cheapest shape that reaches this share."""


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
    steps_s: Array = np.minimum(many.workers / seconds, many.servers * many.server_cpu / job.server_core_s)
    return steps_s


def best(job: TrueJob, bounds: ShapeBounds, *, cpu: float, waits: Waits | None = None) -> Shape:
    """Return the fastest shape within the bounds and `cpu` cores. With `waits`, return the shape with which the job
    ends first."""
    many = grid(bounds)
    steps = true_steps_s(job, many)
    if waits is not None:
        steps = job.samples / (job.samples / steps + job.facts.batch * waits(bounds))
    steps = np.where(cpu_of(many) <= cpu, steps, -1.0)
    fast = np.flatnonzero(steps >= NEARLY * steps.max())
    chosen = fast[np.argmin(cpu_of(many)[fast])]
    servers = int(many.servers[chosen])
    rows = min(1.0, job.faults.hot / servers) * job.memory.table_bytes
    return Shape(
        workers=int(many.workers[chosen]),
        servers=servers,
        worker_cpu=float(many.worker_cpu[chosen]),
        server_cpu=float(many.server_cpu[chosen]),
        worker_memory=int(job.memory.worker_bytes * 1.01),
        server_memory=min(int((job.memory.server_base_bytes + rows) * 1.01), bounds.most.server_memory),
    )


def oracle(jobs: Iterable[TrueJob], *, waits: Waits | None = None) -> System:
    """Return the system that knows these jobs. With `waits`, the system also knows how long pods wait for a node."""
    known = {job.name: job for job in jobs}

    def policy(view: ClusterView, config: PlanningConfig) -> Decision:
        free = view.capacity.cpu
        plans = []
        for seen in view.jobs:
            if seen.shape is None and free >= seen.bounds.least.cpu:
                shape = best(known[seen.name.partition("~")[0]], seen.bounds, cpu=free, waits=waits)
                free -= shape.cpu
                plans.append(
                    ShapePlan(job=seen.name, shape=shape, reason="the truth is known", stage=PlanningStage.ADJUSTING)
                )
        return (
            Decision(plans=tuple(plans), why="the truth is known") if plans else nothing("all run at their best shape")
        )

    return System(name="oracle", policy=policy)
