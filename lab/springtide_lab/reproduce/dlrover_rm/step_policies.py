"""Implement ES and Optimus, the baselines of DLRover's section 6.3, which scale a job in fixed steps by measured speed.

In: a job's model, which sets the size of a step. Out: systems for the simulator, with the mechanisms of an elastic
scheduler. Both systems keep the role sizes that the user requested. DLRover's authors changed Optimus, so that it is
faster here than the original Optimus, which scales by one node at a time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from springtide.domain.core.shape import Shape
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.profile import TimingSum
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import clamp
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.measurements import ShapeSpeed
from springtide.planning.policy import registry
from springtide.sim.engine.systems import Mechanisms, ServerChange, System

STEPS = {"widedeep": (4, 2), "xdeepfm": (1, 1), "dcn": (4, 2)}
"""Workers and servers per step (001 §6.3). The text describes no step for DCN."""
EVERY_S = 180.0
"""Seconds between two steps: 20 s to launch, 100 s to begin, 60 s to sample."""
THRESHOLD = 0.3
"""Share of the mean gain per worker that a new worker must bring. If a worker brings less, ES adds no more workers."""
FEWEST = 3
"""Minimum number of measured shapes for the model of Optimus. Until then, Optimus adds workers and servers in turn."""
LEAST_GAIN = 0.01
"""Share of the speed below which a gain is noise."""
SCHEDULER = Mechanisms(servers=ServerChange.INITIALIZE, relieves=False, foresees=False)
"""Mechanisms of ES and Optimus: they add and remove pods, but do not repair slow pods or forecast memory."""
NextShape = Callable[[JobView, PlanningConfig], Shape | None]
"""Function that returns the shape that a job should have; None if its shape should not change."""


def system(name: str, model: str) -> System:
    """Return ES or Optimus with the steps for a model."""
    workers, servers = STEPS[model]
    next_shape = {"es": partial(es, workers), "optimus": partial(optimus, workers, servers)}[name]
    policy = registry.safe(partial(decide, next_shape))
    return System(name=name, policy=policy, mechanisms=SCHEDULER, every_s=EVERY_S, again_s=EVERY_S, rarely=0.0)


def decide(next_shape: NextShape, view: ClusterView, config: PlanningConfig) -> Decision:
    plans = []
    for job in view.jobs:
        wanted = next_shape(job, config) if job.shape is None or _due(job, view, config) else None
        held = None if wanted is None else clamp.clipped(wanted, job.bounds, config)
        held = None if held is None else clamp.smaller(held, job.bounds, job.bounds.quota)
        if held is not None and held != job.shape:
            plans.append(ShapePlan(job=job.name, shape=held, reason=f"the next step is {held}"))
    return Decision(plans=tuple(plans), why=f"{len(plans)} of {len(view.jobs)} jobs take a step")


def _due(job: JobView, view: ClusterView, config: PlanningConfig) -> bool:
    """Return True if the next step may come. A job counts as changed only when its pods have started, so only the rest
    of the time between two steps remains."""
    started = job.launches[-1].seconds if job.launches else 0.0
    return job.progress.unchanged_s(at=view.now) >= max(EVERY_S - started, config.sample_s)


def es(workers: int, job: JobView, config: PlanningConfig) -> Shape | None:
    """Add workers while each new worker gains more than a threshold share of the throughput of one existing worker."""
    if job.shape is None:
        return None if job.requested is None else replace(job.requested, workers=1)
    here = measurements.now(job)
    if here is None:
        return None
    others = [one for one in speeds(job) if _same_but_workers(one, here)]
    fewer = max((one for one in others if one.shape.workers < here.shape.workers), key=_workers, default=None)
    more = min((one for one in others if one.shape.workers > here.shape.workers), key=_workers, default=None)
    if fewer is not None and _efficiency(fewer, here) <= THRESHOLD:
        return fewer.shape
    if more is not None and _efficiency(here, more) <= THRESHOLD:
        return None
    return replace(here.shape, workers=here.shape.workers + workers)


def optimus(workers: int, servers: int, job: JobView, config: PlanningConfig) -> Shape | None:
    """Add workers, servers or both in the step that gains most by a speed model."""
    if job.shape is None:
        return None if job.requested is None else replace(job.requested, workers=1, servers=1)
    here = measurements.now(job)
    if here is None:
        return None
    quota, now = clamp.quota(job.bounds, config), here.shape
    more_workers = replace(now, workers=now.workers + workers)
    more_servers = replace(now, servers=now.servers + servers)
    wanted = [replace(more_workers, servers=more_servers.servers), more_workers, more_servers]
    steps = [one for one in wanted if quota.holds(one) and job.bounds.holds(one)]
    if not steps:
        return None
    seen = speeds(job)
    if len(seen) < FEWEST:
        return steps[(len(seen) - 1) % len(steps)]
    model = fit(seen)
    best = max(steps, key=lambda shape: speed(model, shape))
    base = speed(model, now)
    return best if speed(model, best) - base > LEAST_GAIN * base else None


def speeds(job: JobView) -> tuple[ShapeSpeed, ...]:
    """Return the measured speed of each shape that the job has had, in the order of the last measurements."""
    sums: dict[Shape, TimingSum] = {}
    for profile in job.profiles:
        if measurements.throughput(profile.shape, profile.timing) is not None:
            sums[profile.shape] = sums.pop(profile.shape, TimingSum()) + profile.timing
    return tuple(
        ShapeSpeed(shape=shape, throughput=found, steps=timing.steps)
        for shape, timing in sums.items()
        if (found := measurements.throughput(shape, timing)) is not None
    )


def _same_but_workers(one: ShapeSpeed, other: ShapeSpeed) -> bool:
    return replace(one.shape, workers=1) == replace(other.shape, workers=1) and one.shape != other.shape


def _efficiency(fewer: ShapeSpeed, more: ShapeSpeed) -> float:
    new = (more.throughput - fewer.throughput) / (more.shape.workers - fewer.shape.workers)
    old = fewer.throughput / fewer.shape.workers
    return new / old if old > 0 else math.inf


def _workers(one: ShapeSpeed) -> int:
    return one.shape.workers


def fit(seen: Sequence[ShapeSpeed]) -> tuple[float, float, float, float]:
    """Fit a, b, c, d to speeds by shape. The quotient w / speed is linear in these coefficients."""
    from scipy import optimize

    w, p = (np.array([float(getattr(one.shape, name)) for one in seen]) for name in ("workers", "servers"))
    y = w / np.array([one.throughput for one in seen])
    found, _ = optimize.nnls(np.stack([np.ones_like(w), w / p, w, p], axis=1) / y[:, None], np.ones_like(y))
    a, b, c, d = (float(each) for each in found)
    return a, b, c, d


def speed(model: tuple[float, float, float, float], shape: Shape) -> float:
    a, b, c, d = model
    w, p = shape.workers, shape.servers
    seconds = a + b * w / p + c * w + d * p
    return w / seconds if seconds > 0 else 0.0
