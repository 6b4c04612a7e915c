"""Pure. Checks from measurements alone whether a job was better off before its last change.

In: a `JobView` with measurements of its shape. Out: a `ShapeComparison` with the previous shape, and from it a shape to
return to, or a shape not to try again. Next: `planning.lifecycle.stages` requests the return. `planning.allocate.bids`
omits the refuted shape.

Plans rely on a model, and the model relies on noisy windows, so some predictions fail. Only the last two shapes are
compared. Otherwise a machine that became slower would send a job back through all its earlier shapes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from springtide.domain.core.shape import Shape, cost
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.perf_model import measurements

FEWEST = 3
"""Minimum number of windows in each shape; fewer give no spread."""
MOST = 16
"""Maximum number of windows of each shape, newest first."""
CERTAIN = 3.0
"""Standard errors by which the two speeds must differ."""
LEAST_SPREAD = 0.02
"""Minimum relative spread of a window's speed. Closer agreement is chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeComparison:
    """Comparison of the current shape with the previous shape."""

    before: Shape
    faster: float
    """Log ratio of the earlier speed to the current speed, each a mean over windows."""
    certain: bool
    """True if the difference is significant."""
    speed: float
    """Earlier samples per second."""


def compared(job: JobView) -> ShapeComparison | None:
    """Compare with the shape before the last change; None if either shape has too few measurements."""
    since, now = job.last_change_at, job.shape
    if since is None or now is None or job.extra_workers:
        return None
    here: list[Profile] = []
    there: list[Profile] = []
    before: Shape | None = None
    for one in reversed(job.profiles):
        same = one.shape is now or alike(one.shape, now)
        if same and before is None:
            if one.at >= since and len(here) < MOST:
                here.append(one)
        elif not same and (before is None or one.shape is before or alike(one.shape, before)):
            before = one.shape
            if one.at < since:
                there.append(one)
        else:
            break
        if len(there) == MOST:
            break
    if before is None or min(len(here), len(there)) < FEWEST:
        return None
    speeds_here, speeds_there = _speeds(here), _speeds(there)
    if min(len(speeds_here), len(speeds_there)) < FEWEST:
        return None
    mean_here, error_here = _mean(speeds_here)
    mean_there, error_there = _mean(speeds_there)
    apart = mean_there - mean_here
    certain = abs(apart) > CERTAIN * math.sqrt(error_here + error_there)
    return ShapeComparison(before=before, faster=apart, certain=certain, speed=math.exp(mean_there))


def back(job: JobView, config: PlanningConfig) -> ShapeComparison | None:
    """Return the comparison if the job should go back: the earlier shape was certainly faster, by enough, at no higher
    cost per sample."""
    found, now = compared(job), job.shape
    if found is None or now is None or not found.certain or found.faster <= math.log1p(config.least_gain):
        return None
    dearer = cost(found.before, config.prices) / cost(now, config.prices)
    return found if dearer <= math.exp(found.faster) and job.bounds.holds(found.before) else None


def refuted(job: JobView, config: PlanningConfig) -> Shape | None:
    """Return the previous shape if it was certainly slower and its samples cost more. No model justifies another
    try."""
    found, now = compared(job), job.shape
    if found is None or now is None or not found.certain or found.faster >= 0:
        return None
    dearer = cost(found.before, config.prices) / cost(now, config.prices)
    return found.before if dearer > math.exp(found.faster) else None


def alike(one: Shape, other: Shape) -> bool:
    """Return True if two shapes have equal speed. Memory does not affect speed."""
    return one is other or (one.workers, one.servers, one.worker_cpu, one.server_cpu) == (
        other.workers,
        other.servers,
        other.worker_cpu,
        other.server_cpu,
    )


def _speeds(windows: Sequence[Profile]) -> list[float]:
    """Return the log throughput of each window, without windows in which nothing was trained."""
    speeds = (measurements.throughput(one.shape, one.timing) for one in windows)
    return [math.log(speed) for speed in speeds if speed is not None and speed > 0]


def _mean(logs: Sequence[float]) -> tuple[float, float]:
    mean = sum(logs) / len(logs)
    spread = sum((one - mean) ** 2 for one in logs) / (len(logs) - 1)
    return mean, max(LEAST_SPREAD**2, spread) / len(logs)
