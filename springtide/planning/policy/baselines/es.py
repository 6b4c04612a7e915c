"""Pure. Elastic scheduling in steps of workers, the baseline of DLRover's paper (section 6.3).

In: measured speeds. Out: more workers while they pay off, one step back when they do not. It changes neither servers
nor sizes, and decides every three minutes.
"""

import math
from dataclasses import replace

from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.measurements import ShapeSpeed
from springtide.planning.policy.baselines import starts


def es(view: ClusterView, config: PlanningConfig) -> Decision:
    """Add workers while a new worker gains more than the threshold share of an old worker."""

    def step(job: JobView) -> starts.Step:
        if job.shape is None:
            servers = starts.sizes(job, config).servers
            return starts.of(job, config, workers=1, servers=servers)
        if soon := starts.too_soon(job, view, config):
            return soon
        here = measurements.now(job)
        return "nothing sensible was measured in this shape" if here is None else _next(job, here, config)

    return starts.each(view, "workers by steps", step)


def _next(job: JobView, here: ShapeSpeed, config: PlanningConfig) -> starts.Step:
    others = [one for one in measurements.by_shape(job) if same_but_workers(one, here)]
    fewer = max((one for one in others if one.shape.workers < here.shape.workers), key=_workers, default=None)
    more = min((one for one in others if one.shape.workers > here.shape.workers), key=_workers, default=None)
    if fewer is not None and (paid := efficiency(fewer, here)) <= config.steps.threshold:
        back = f"{here.shape.workers - fewer.shape.workers} workers less: each brought {paid:.2f} of the others"
        return starts.plan(job, fewer.shape, back, config, gain=fewer.throughput - here.throughput)
    if more is not None and (paid := efficiency(here, more)) <= config.steps.threshold:
        return f"{more.shape.workers} workers were tried: each new one brought {paid:.2f} of the others"
    grown = replace(here.shape, workers=here.shape.workers + config.steps.workers)
    bet = here.throughput / here.shape.workers * config.steps.workers
    return starts.plan(job, grown, f"{config.steps.workers} workers more: they paid so far", config, gain=bet)


def same_but_workers(one: ShapeSpeed, other: ShapeSpeed) -> bool:
    """Return True if the two shapes differ only in the number of workers."""
    return replace(one.shape, workers=1) == replace(other.shape, workers=1) and one.shape != other.shape


def efficiency(fewer: ShapeSpeed, more: ShapeSpeed) -> float:
    """Return the gain of a new worker as a share of an old worker's throughput."""
    new = (more.throughput - fewer.throughput) / (more.shape.workers - fewer.shape.workers)
    old = fewer.throughput / fewer.shape.workers
    return new / old if old > 0 else math.inf


def _workers(one: ShapeSpeed) -> int:
    return one.shape.workers
