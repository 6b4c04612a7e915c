"""Pure. Optimus (EuroSys'18): a speed model over workers and servers, and steps by marginal gain.

In: measured speeds. Out: one more worker or server every three minutes, whichever gains more per core. The variant of
DLRover's authors (section 6.3) adds several workers, several servers, or both, whichever gains most. Optimus ignores
the size of roles, lookups, and hot servers.

    speed(p, w) = w / (a + b * w / p + c * w + d * p)    asynchronous training; a, b, c, d by non-negative least squares
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from springtide.domain.core.shape import Shape
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import clamp
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.measurements import ShapeSpeed
from springtide.planning.policy.baselines import starts

FEWEST = 3
"""Minimum number of measured shapes for the model. Until then, workers and servers are added in turn."""
LEAST_GAIN = 0.01
"""Share of the speed below which a gain is noise."""


def optimus(view: ClusterView, config: PlanningConfig) -> Decision:
    """Scale in steps of several workers and servers, the faster variant of DLRover's authors."""
    return _decide(view, config, workers=config.steps.workers, servers=config.steps.servers, together=True)


def optimus_one(view: ClusterView, config: PlanningConfig) -> Decision:
    """Scale by one worker or one server at a time, as in the original."""
    return _decide(view, config, workers=1, servers=1, together=False)


def _decide(view: ClusterView, config: PlanningConfig, *, workers: int, servers: int, together: bool) -> Decision:
    def step(job: JobView) -> starts.Step:
        if job.shape is None:
            return starts.of(job, config, workers=1, servers=1)
        if soon := starts.too_soon(job, view, config):
            return soon
        here = measurements.now(job)
        if here is None:
            return "nothing sensible was measured in this shape"
        quota = clamp.quota(job.bounds, config)
        wanted = _steps(here.shape, workers, servers, together=together)
        steps = [one for one in wanted if quota.holds(one) and job.bounds.holds(one)]
        if not steps:
            return f"neither {workers} workers nor {servers} servers more are within its bounds and {quota.cpu:g} cores"
        seen = measurements.by_shape(job)
        if len(seen) < FEWEST:
            probe = steps[(len(seen) - 1) % len(steps)]
            return starts.plan(job, probe, f"a probe: {len(seen)} of {FEWEST} shapes measured", config, gain=1e-9)
        return _by_model(job, here, seen, steps, config, a_core=not together)

    how = "and" if together else "or"
    return starts.each(view, f"Optimus, by {workers} workers {how} {servers} servers", step)


def _steps(now: Shape, workers: int, servers: int, *, together: bool) -> list[Shape]:
    """Return the possible next shapes: both (if `together`), more workers, more servers."""
    more_workers, more_servers = (
        replace(now, workers=now.workers + workers),
        replace(now, servers=now.servers + servers),
    )
    both = [replace(more_workers, servers=more_servers.servers)] if together else []
    return [*both, more_workers, more_servers]


def _by_model(
    job: JobView,
    here: ShapeSpeed,
    seen: Sequence[ShapeSpeed],
    steps: Sequence[Shape],
    config: PlanningConfig,
    *,
    a_core: bool,
) -> starts.Step:
    """Return the step with the largest gain, or gain per core, by the speed model."""
    model = fit(seen)
    base = speed(model, here.shape)
    gains = [speed(model, shape) - base for shape in steps]
    cores = [max(one.cpu - here.shape.cpu, 1e-9) if a_core else 1.0 for one in steps]
    best = max(range(len(steps)), key=lambda at: gains[at] / cores[at])
    if gains[best] <= LEAST_GAIN * base:
        return f"neither workers nor servers more would bring anything ({gains[best] / max(base, 1e-9):+.1%})"
    reason = f"{steps[best]}: {base:,.0f} -> {base + gains[best]:,.0f} samples/s by the speed model"
    return starts.plan(job, steps[best], reason, config, gain=gains[best])


def fit(seen: Sequence[ShapeSpeed]) -> tuple[float, float, float, float]:
    """Fit a, b, c, d to speeds by shape; w / speed is linear in them."""
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
