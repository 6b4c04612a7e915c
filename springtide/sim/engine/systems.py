"""Systems to compare: a policy that decides, and mechanisms that carry out plans and repair faults.

In: a policy and its name. Out: a `System`. The policies are real code. The mechanisms follow the papers: Kubeflow
cannot change a job, ES and Optimus re-initialize it, and Springtide changes it while it trains.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from springtide import errors
from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Array, Shapes
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob

Policy = Callable[[ClusterView, PlanningConfig], Decision]


class ServerChange(StrEnum):
    """Cost of a change of servers."""

    RESTART = "restart"
    """Stop, save to remote storage, prepare, load (000 §2.2)."""
    INITIALIZE = "initialize"
    """Train while the pods start, then rebuild the graph (001 §6.3)."""
    LIVE = "live"
    """Train on, with a short pause for a copy through memory (000 §5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """Abilities of a runtime."""

    elastic: bool = True
    """The runtime changes shapes and replaces lost pods. Otherwise a lost pod fails the job, and the user runs it
    again.
    """
    dynamic_shards: bool = True
    """Workers lease shards as they go. Otherwise each worker has an equal part of the data."""
    servers: ServerChange = ServerChange.LIVE
    relieves: bool = True
    """The runtime detects and relieves hot servers and stragglers."""
    foresees: bool = True
    """The runtime forecasts memory needs (`planning.guards.memory`) and shows them to the policy."""

    def pause_s(self, world: ClusterWorld) -> float:
        """Return the seconds that a change of servers pauses a job."""
        if self.servers is ServerChange.RESTART:
            return world.checkpoint_s + world.prepare_s + world.load_s
        return world.init_s if self.servers is ServerChange.INITIALIZE else world.live_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A policy with its mechanisms and intervals."""

    name: str
    policy: Policy
    mechanisms: Mechanisms = field(default_factory=Mechanisms)
    every_s: float = 60.0
    """Seconds between two calls of the policy."""
    again_s: float = 600.0
    """Minimum seconds until the policy sees a job again, if nothing happened to the job."""
    rarely: float = 0.25
    """The same minimum as a share of the time since the job's last change."""


KUBEFLOW = Mechanisms(elastic=False, dynamic_shards=False, servers=ServerChange.RESTART, relieves=False, foresees=False)
SCHEDULER = Mechanisms(servers=ServerChange.INITIALIZE, relieves=False, foresees=False)
"""Mechanisms of ES and Optimus: pods come and go, without repair of slow pods and without memory forecasts."""
THREE_MINUTES_S = 180.0

MECHANISMS = {"static": KUBEFLOW, "es": SCHEDULER, "optimus": SCHEDULER, "optimus_one": SCHEDULER}


def system(name: str, policy: Policy) -> System:
    """Return the system of a policy: with the mechanisms of its paper if known, else with Springtide's mechanisms."""
    mechanisms = MECHANISMS.get(name, Mechanisms())
    if mechanisms is SCHEDULER:
        return System(
            name=name,
            policy=policy,
            mechanisms=mechanisms,
            every_s=THREE_MINUTES_S,
            again_s=THREE_MINUTES_S,
            rarely=0.0,
        )
    return System(name=name, policy=policy, mechanisms=mechanisms)


def check(decision: object, name: str) -> Decision:
    """Raise unless the policy returned a `Decision`; third-party policies may return anything."""
    if not isinstance(decision, Decision):
        raise errors.BadInput(f"policy {name} returned {type(decision).__name__}; wanted a Decision")
    return decision


QUANTILES = 64
NEARLY = 0.999
"""Of the shapes with at least this share of the best speed, the cheapest is chosen."""


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
    rows = min(1.0, job.faults.hot / servers) * job.memory.table_bytes
    return Shape(
        workers=int(many.workers[chosen]),
        servers=servers,
        worker_cpu=float(many.worker_cpu[chosen]),
        server_cpu=float(many.server_cpu[chosen]),
        worker_memory=int(job.memory.worker_bytes * 1.01),
        server_memory=min(int((job.memory.server_base_bytes + rows) * 1.01), bounds.most.server_memory),
    )


def oracle(jobs: Iterable[TrueJob], *, world: ClusterWorld | None = None) -> System:
    """Return the system that knows these jobs, and with `world` the pending times of pods."""
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

    return System(name="oracle", policy=policy)
