"""Pure. Extracts measurements from a job: throughput by shape, and cores used by roles."""

import math
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import Profile, TimingSum, total
from springtide.domain.plan.view import JobView, RoleUse
from springtide.planning.perf_model.shape_columns import ShapeColumns

TIMED = 0.5
"""The terms of a step are valid only if they explain at least this share of the step time."""
NEWEST = 48
"""Most windows, of any shape, from which the core-seconds per sample are computed."""


class ShapeSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measured throughput of a job in one shape."""

    shape: Shape
    throughput: float
    steps: int
    windows: int = 1
    timed: bool = False
    """True if the time of steps was measured term by term. Measurements of one shape then allow predictions for further
    shapes.
    """


def throughput(shape: Shape, timing: TimingSum) -> float | None:
    """Return samples per second from sums over all workers; None if the sums are invalid."""
    if not (0 < timing.total_s < math.inf and 0 < timing.samples < math.inf and timing.steps > 0):
        return None
    speed = shape.workers * timing.samples / timing.total_s
    return speed if speed < math.inf else None


def shapes(job: JobView) -> set[Shape]:
    found: set[Shape] = set()
    last: Shape | None = None
    for profile in job.profiles:
        shape = profile.shape
        # compare shapes only where they change, because a job has the same shape for many windows
        if shape is not last and shape != last and _sound(profile):
            found.add(shape)
            last = shape
    return found


def now(job: JobView) -> ShapeSpeed | None:
    changed_at = job.progress.last_change_at
    since = changed_at if changed_at is not None else -math.inf
    shape = job.shape
    recent = [
        profile
        for profile in job.profiles
        if profile.at >= since and (profile.shape is shape or profile.shape == shape) and _sound(profile)
    ]
    if not recent:
        return None
    timing = total(profile.timing for profile in recent)
    speed = throughput(recent[0].shape, timing)
    if speed is None:
        return None
    terms = timing.gradient_s + timing.update_s + timing.synchronization_s + timing.lookup_s
    timed = math.isfinite(terms) and terms >= TIMED * timing.total_s
    return ShapeSpeed(shape=recent[0].shape, throughput=speed, steps=timing.steps, windows=len(recent), timed=timed)


def _sound(profile: Profile) -> bool:
    return throughput(profile.shape, profile.timing) is not None


def spent(job: JobView, kind: RoleKind) -> float | None:
    """Return the core-seconds per sample of workers or servers; None if the count is unknown.

    A sample costs about the same in every shape, and a single window is inaccurate. The result is therefore the
    trimmed mean over all recent windows. Usage above the limit is ignored, because it only appears when the kernel
    grants a quota in portions (see `of_cores`).
    """
    eras: list[tuple[Shape, list[float], list[float]]] = []
    for profile in job.profiles[-NEWEST:]:
        used = profile.worker_cores if kind is RoleKind.WORKER else profile.server_cores
        if used is None or not 0 < used < math.inf or (speed := throughput(profile.shape, profile.timing)) is None:
            continue
        if not eras or (profile.shape is not eras[-1][0] and profile.shape != eras[-1][0]):
            eras.append((profile.shape, [], []))
        eras[-1][1].append(used)
        eras[-1][2].append(speed)
    total = count = 0.0
    for shape, cores, speeds in eras:
        workers, servers = shape.workers * shape.worker_cpu, shape.servers * shape.server_cpu
        used = min(middle(cores), workers if kind is RoleKind.WORKER else servers)
        total, count = total + len(cores) * used / middle(speeds), count + len(cores)
    return total / count if count else None


def middle(values: list[float]) -> float:
    """Return the trimmed mean: drop a quarter of the values at each end. With three values or more, drop at least one
    at each end."""
    ends = max(len(values) // 4, 1) if len(values) > 2 else 0
    some = sorted(values)[ends : len(values) - ends]
    return sum(some) / len(some)


class CoreUse(msgspec.Struct, frozen=True, kw_only=True):
    """Cores of all roles of one kind, such as all workers."""

    used: float
    given: float
    count: int
    hottest: RoleUse
    """Role that uses the highest share of its cores."""

    @property
    def share(self) -> float:
        return self.hottest.cpu_used / self.hottest.cpu


def use(job: JobView, kind: RoleKind) -> CoreUse | None:
    """Return the cores that workers or servers use; None if there is no valid data.

    Each role was measured for a few seconds only. If windows give the cost per sample, the total is that cost times the
    current throughput. The ratios between the roles stay as measured.
    """
    used, given, count, share, hottest = 0.0, 0.0, 0, -1.0, None
    for use in job.uses:
        mine, cpu = use.cpu_used, use.cpu
        if use.role.kind is kind and 0 <= mine < math.inf and 0 < cpu < math.inf:
            used, given, count = used + mine, given + cpu, count + 1
            if mine / cpu > share:
                share, hottest = mine / cpu, use
    if hottest is None or not used > 0:
        return None
    a_sample, here = spent(job, kind), now(job)
    if a_sample is not None and here is not None:
        smoothed = min(a_sample * here.throughput, max(used, given))
        hottest = replace(hottest, cpu_used=hottest.cpu_used * smoothed / used)
        used = smoothed
    return CoreUse(used=used, given=given, count=count, hottest=hottest)


Floats = NDArray[np.float64]


class CoreSpeed(NamedTuple):
    """Samples per second of one worker core and of one server core; infinity means unknown."""

    worker: float = math.inf
    server: float = math.inf


UNLIMITED = CoreSpeed()


def pace_of(job: JobView, throughput: float) -> CoreSpeed:
    """Return the speed of cores from all windows. Without core counts, compute the speed from the current usage and
    throughput."""
    return CoreSpeed(*(_pace(job, kind, throughput) for kind in (RoleKind.WORKER, RoleKind.SERVER)))


def _pace(job: JobView, kind: RoleKind, throughput: float) -> float:
    a_sample = spent(job, kind)
    if a_sample:
        return 1 / a_sample
    used = use(job, kind)
    return math.inf if used is None else of_cores(throughput, used.used, used.given)


def of_cores(throughput: float, used: float, given: float) -> float:
    """Return the samples per second of one granted core; infinity if unknown.

    The kernel grants a quota in portions, so a limited role appears to use a few percent more than its limit. Roles
    exceed any quota in this way. Plans grant cores, so the result is per granted core.
    """
    cores = min(used, given) if given > 0 else used
    return throughput / cores if throughput > 0 and cores > 0 else math.inf


def ceiling(pace: CoreSpeed | Floats, shapes: ShapeColumns) -> Floats:
    """Return the samples per second that the cores allow. `pace` has one speed for all shapes, or two rows with one
    speed per shape.
    """
    worker, server = pace
    return np.minimum(shapes.workers * shapes.worker_cpu * worker, shapes.servers * shapes.server_cpu * server)


def ceiling_of(pace: CoreSpeed, shape: Shape) -> float:
    return min(shape.workers * shape.worker_cpu * pace.worker, shape.servers * shape.server_cpu * pace.server)
