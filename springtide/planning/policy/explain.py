"""Pure. Explains a decision about a job for `springtide plan`: its model and the candidate shapes."""

import math
from dataclasses import dataclass, replace

import numpy as np

from springtide import errors
from springtide.domain.core.shape import Shape, ShapeBounds, cost
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import bids
from springtide.planning.candidates import pareto
from springtide.planning.candidates.pareto import FrontQuery
from springtide.planning.perf_model import equations, fit, measurements
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.perf_model.measurements import CoreSpeed

MOST = 12
"""Most options to show per job, in addition to the current and the chosen shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOption:
    """Possible shape of a job."""

    shape: Shape
    cost: float
    throughput: float | None
    """Expected samples per second; None if there is no prediction."""
    chosen: bool = False
    now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutlook:
    """Explanation of the decision about one job."""

    job: str
    model: FittedModel | str
    """Model of the job, or the reason why there is none."""
    measured: float | None
    """Current samples per second; None without valid measurements."""
    options: tuple[ShapeOption, ...]
    """Options, cheapest first. Except for the current and the chosen shape, all options are Pareto-optimal."""
    why: str
    """Number of shapes considered."""
    plan: ShapePlan | None
    shares: tuple[float, ...] | None
    """Share of each coefficient in the step time of the current shape; None if the job has no model or no shape."""


def outlooks(view: ClusterView, config: PlanningConfig, decision: Decision) -> tuple[JobOutlook, ...]:
    speeds = [here.throughput if (here := measurements.now(job)) else None for job in view.jobs]
    paces = [
        measurements.pace_of(job, speed) if speed else CoreSpeed() for job, speed in zip(view.jobs, speeds, strict=True)
    ]
    models = fit.fit_many([(job.profiles, job.facts) for job in view.jobs], paces)
    with np.errstate(all="ignore"):  # measurements may hold any value
        return tuple(
            _one(job, speed, pace, model, view, config, decision)
            for job, speed, pace, model in zip(view.jobs, speeds, paces, models, strict=True)
        )


def predict(view: ClusterView, config: PlanningConfig, shape: Shape) -> ShapeOption | str:
    """Return what the planner expects of one shape of the view's first job, or why it expects nothing."""
    job = view.jobs[0]
    here = measurements.now(job)
    pace = measurements.pace_of(job, here.throughput) if here else CoreSpeed()
    with np.errstate(all="ignore"):
        (model,) = fit.fit_many([(job.profiles, job.facts)], [pace])
        if isinstance(model, str):
            return model
        speed = min(float(model.predict(shape)), measurements.ceiling_of(pace, shape))
    now = job.shape is not None and _alike(shape, job.shape)
    return ShapeOption(shape=shape, cost=cost(shape, config.prices), throughput=speed, now=now)


def _one(
    job: JobView,
    measured: float | None,
    pace: CoreSpeed,
    model: FittedModel | str,
    view: ClusterView,
    config: PlanningConfig,
    decision: Decision,
) -> JobOutlook:
    plan = decision.plan_for(job.name)
    options: list[tuple[Shape, float | None]]
    if isinstance(model, str):
        options = [(shape, None) for shape in _named(job, plan)]
        why, shares = f"no candidates: {model}", None
    else:
        bounds = _bounds(job, view, config)
        front = pareto.front(
            FrontQuery(
                coefficients=model.coefficients,
                facts=job.facts,
                bounds=bounds,
                need=job.need,
                prices=config.prices,
                pace=pace,
            )
        )
        thin = front.thin(MOST)
        shapes = [thin.shapes.shape(place) for place in range(len(thin))]
        shapes += [shape for shape in _named(job, plan) if not any(_alike(shape, known) for known in shapes)]
        options = [(shape, min(float(model.predict(shape)), measurements.ceiling_of(pace, shape))) for shape in shapes]
        unclear = (
            "; the model is still uncertain, so a job that has its size changes only to shapes near the measured ones"
        )
        why = front.why + (unclear if model.unclear else "")
        shares = _shares(model, job.shape) if job.shape else None
    listed = [
        ShapeOption(
            shape=shape,
            cost=cost(shape, config.prices),
            throughput=speed,
            chosen=plan is not None and _alike(shape, plan.shape),
            now=job.shape is not None and _alike(shape, job.shape),
        )
        for shape, speed in options
    ]
    listed.sort(key=lambda option: (option.cost, option.throughput or 0.0))
    return JobOutlook(
        job=job.name, model=model, measured=measured, options=tuple(listed), why=why, plan=plan, shares=shares
    )


def _bounds(job: JobView, view: ClusterView, config: PlanningConfig) -> ShapeBounds:
    """Return the job's bounds, limited by the settings and, if the job fits at all, by the cluster."""
    bounds = bids.allowed(job.bounds, config)
    quota, whole = bounds.quota, view.capacity
    try:
        return replace(bounds, quota=quota.joined(whole, min))
    except errors.BadInput:
        return bounds


def _named(job: JobView, plan: ShapePlan | None) -> list[Shape]:
    known = [job.shape] if job.shape else []
    if plan is not None and not any(_alike(plan.shape, shape) for shape in known):
        known.append(plan.shape)
    return known


def _alike(one: Shape, other: Shape) -> bool:
    """Return True if the model cannot distinguish two shapes, because it ignores memory."""
    return (
        (one.workers, one.servers) == (other.workers, other.servers)
        and math.isclose(one.worker_cpu, other.worker_cpu, rel_tol=1e-6)
        and math.isclose(one.server_cpu, other.server_cpu, rel_tol=1e-6)
    )


def _shares(model: FittedModel, shape: Shape) -> tuple[float, ...]:
    parts = np.array([float(part) for part in equations.terms(model.coefficients, model.facts, shape)])
    return tuple((parts / parts.sum()).tolist()) if parts.sum() > 0 else tuple(0.0 for _ in parts)
