"""Pure. Decides the next step of one job: start, measure, resize, or repair.

waiting -> warm start or small start -> sampling -> servers by Eqn 11 -> optimizing -> workers -> adjusting. If steps
are timed by term, one sample is enough, and the job gets its size in a single change.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape, ShapeBounds, cost
from springtide.domain.plan.plan import ShapePlan
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import ClusterView, FindingKind, GuardFinding, JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import warm_start
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.measurements import ShapeSpeed

SPARE = 1.3
"""The memory of a worker is this many times its measured usage."""

NEARLY_ALL = 0.9
"""A worker that uses more than this share of its cores is not made smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNeed:
    """Measured resource usage per worker."""

    worker_cpu: float
    """w: number of cores that one worker uses."""
    server_cpu: float
    """s: cores that all servers together use per worker."""
    worker_memory: int = 0
    """Bytes of memory that one worker used; 0 means unknown."""

    @property
    def sound(self) -> bool:
        return 0 < self.worker_cpu < math.inf and 0 < self.server_cpu < math.inf


def workers_and_cores(need: MeasuredNeed, total: float) -> tuple[int, float]:
    workers = max(1, math.floor(total / (need.worker_cpu + need.server_cpu)))
    return workers, max(total - workers * need.worker_cpu, need.server_cpu)


def servers_first(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """Return the current shape with as many server cores as the whole job will need, in servers of the usual size."""
    total = clamp.quota(bounds, config).cpu
    _, cores = workers_and_cores(need, total)
    cpu_of_each = min(config.server_cpu, bounds.most.server_cpu, max(cores, bounds.least.server_cpu))
    servers = max(1, math.floor(cores / cpu_of_each + 1e-9))
    # workers stay unchanged, because their usage is measured again
    right = replace(now, servers=servers, server_cpu=cpu_of_each)
    return clamp.within(right, bounds, config)


def workers_then(now: Shape, need: MeasuredNeed, bounds: ShapeBounds, config: PlanningConfig) -> Shape:
    """Return as many workers as the servers can serve (Eqn 4) within the quota (Eqn 3), each with the cores that it
    uses."""
    total = clamp.quota(bounds, config).cpu
    held = now.servers * now.server_cpu
    _, cores = workers_and_cores(need, total)
    served = max(held, cores) / need.server_cpu
    cpu = worker_cores(now, need)
    paid = (total - held) / min(cpu, max(need.worker_cpu, 1e-9))
    workers = max(1, math.floor(min(served, paid) + 1e-9))
    memory = now.worker_memory
    if memory and need.worker_memory:
        memory = min(memory, math.ceil(SPARE * need.worker_memory))
    return clamp.within(replace(now, workers=workers, worker_cpu=cpu, worker_memory=memory), bounds, config)


def worker_cores(now: Shape, need: MeasuredNeed) -> float:
    """Return whole cores, or tenths below one core. A worker that uses nearly all its cores is not made smaller."""
    if need.worker_cpu >= NEARLY_ALL * now.worker_cpu:
        return now.worker_cpu
    return float(math.ceil(need.worker_cpu)) if need.worker_cpu > 1 else math.ceil(need.worker_cpu * 10) / 10


SOON = 3.0
"""A job that has got no new size after this many times the sampling time counts as having its size."""
ROOMIER = 1.5
"""Factors for the new memory of a server whose rows will not fit: one for its current memory, one for its predicted
need.
"""
SAMPLED = 3
"""Sampling needs at least this many windows before its number of steps may end it early, because a single window can be
far off."""
URGENT, START, SIZE = 0, 1, 2
"""Order in which the planner serves requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Plan to apply if there are enough resources. If resources are short, the job tries a smaller version of the
    plan.
    """

    plan: ShapePlan
    rank: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyJob:
    """Measured job that competes with other jobs for capacity, with its measured speed."""

    job: JobView
    measured: ShapeSpeed
    first: bool = False
    """True if the job does not have its size yet. The job's model is then trusted for all shapes."""


Step = PlanRequest | ReadyJob | str


def next_step(job: JobView, view: ClusterView, config: PlanningConfig) -> Step:
    if job.shape is None:
        return _start(job, view, config)
    quiet = job.progress.unchanged_s(at=view.now)
    sized = job.stage not in (PlanningStage.WAITING, PlanningStage.SAMPLING) or quiet > SOON * config.sample_s
    urgent = _memory(job, job.shape, config, ahead=sized)
    if urgent is not None:
        return urgent
    begun = job.progress.last_change_at is None and job.stage in (PlanningStage.WAITING, PlanningStage.SAMPLING)
    if quiet < config.between_changes_s and not begun:
        return f"changed {quiet:.0f} s ago; at least {config.between_changes_s:.0f} s must pass between changes"
    here = measurements.now(job)
    if here is None:
        return "no usable measurement in this shape yet"
    if job.stage in (PlanningStage.WAITING, PlanningStage.SAMPLING):
        if quiet < config.sample_s and (here.steps < config.sample_steps or here.windows < SAMPLED):
            wanted = f"{config.sample_steps} in {SAMPLED} windows, or {config.sample_s:.0f} s"
            return f"sampled for {here.steps} steps in {here.windows} windows and {quiet:.0f} s; needs {wanted}"
        return _busy_servers(job, job.shape, config) or _sized(job, job.shape, here, config, _servers)
    if job.stage is PlanningStage.OPTIMIZING:
        return _sized(job, job.shape, here, config, _workers)
    odd = [finding for finding in job.findings if finding.trouble in (FindingKind.STRAGGLER, FindingKind.SLOW_SERVER)]
    if odd:
        return f"{odd[0].trouble}, {odd[0].role}: measurements now do not describe the shape ({odd[0].why})"
    return _back(job, job.shape, config) or ReadyJob(job=job, measured=here)


def _back(job: JobView, shape: Shape, config: PlanningConfig) -> PlanRequest | None:
    """Request the previous shape if the last change made the job slower."""
    found = back(job, config)
    if found is None:
        return None
    held = clamp.within(found.before, job.bounds, config, need=job.need)
    if alike(held, shape):
        return None
    slower = math.expm1(-found.faster)
    why = f"back to {held}: measured {found.speed:,.0f} samples/s there, {slower:+.0%} since the change"
    return PlanRequest(
        plan=replace(_plan(job, held, why, config, PlanningStage.ADJUSTING), throughput=found.speed), rank=SIZE
    )


def _sized(
    job: JobView,
    shape: Shape,
    here: ShapeSpeed,
    config: PlanningConfig,
    by_use: Callable[[JobView, Shape, PlanningConfig], PlanRequest | None],
) -> Step:
    """Choose the job's size. If steps were timed by term, the model chooses the size in one change. Otherwise the size
    follows from the usage, servers before workers."""
    if here.timed or job.facts.group:  # DLRover's equations assume async workers
        return ReadyJob(job=job, measured=here, first=here.timed)
    return by_use(job, shape, config) or ReadyJob(job=job, measured=here)


def _start(job: JobView, view: ClusterView, config: PlanningConfig) -> PlanRequest:
    start = warm_start.start(job, view.history, config)
    stage = PlanningStage.OPTIMIZING if start.warm else PlanningStage.SAMPLING
    return PlanRequest(plan=_plan(job, start.shape, start.why, config, stage), rank=START, notes=start.notes)


def _memory(job: JobView, shape: Shape, config: PlanningConfig, *, ahead: bool) -> PlanRequest | None:
    """Request more memory before or after an out-of-memory kill. A worker gets twice its memory; servers become more
    numerous or larger.

    A job that still waits for its final size will soon get that size with enough memory, so predicted shortages can
    wait. The guards report a kill for a while; a role that has already restarted with more memory gets no more for the
    same kill.
    """
    for finding in job.findings:
        if finding.trouble is FindingKind.OOM and _roomy(job, finding.role.kind):
            continue
        if finding.role.kind is RoleKind.WORKER and finding.trouble is FindingKind.OOM:
            wanted = [replace(shape, worker_memory=2 * shape.worker_memory)]
        elif finding.role.kind is RoleKind.SERVER and (
            finding.trouble is FindingKind.OOM or (finding.trouble is FindingKind.MEMORY and ahead)
        ):
            wanted = _more_for_rows(job, shape, finding, config)
        else:
            continue
        for number in wanted:
            held = clamp.within(number, job.bounds, config, need=job.need)
            if _memory_of(held) > _memory_of(shape):
                return PlanRequest(
                    plan=_plan(job, held, f"{finding.role}, {finding.trouble}: {held} ({finding.why})", config, None),
                    rank=URGENT,
                )
    return None


def _roomy(job: JobView, kind: RoleKind) -> bool:
    held = [used for used in job.used_by(kind) if used.memory > 0 and used.memory_used > 0]
    return bool(held) and max(used.memory_used / used.memory for used in held) <= 1 / ROOMIER


def _more_for_rows(job: JobView, shape: Shape, found: GuardFinding, config: PlanningConfig) -> list[Shape]:
    """Return shapes with more or larger servers, in order of preference.

    Try more servers first after an out-of-memory kill, if the guard asks for a number of servers, or if server memory
    has no limit. Otherwise try larger servers first. If the quota lacks cores, the new servers share the existing
    server cores, so no worker is removed.
    """
    factor = 2.0 if found.trouble is FindingKind.OOM else ROOMIER
    larger = replace(
        shape, server_memory=round(max(factor * shape.server_memory, ROOMIER * job.need.of_server(shape.servers)))
    )
    count = found.servers or (2 * shape.servers if found.trouble is FindingKind.OOM else shape.servers + 1)
    more = replace(shape, servers=max(count, shape.servers))
    if not clamp.quota(job.bounds, config).holds(more):
        more = replace(more, server_cpu=shape.server_cpu * shape.servers / more.servers)
    by_number = found.trouble is FindingKind.OOM or found.servers is not None or not shape.server_memory
    return [more, larger] if by_number else [larger, more]


def _memory_of(shape: Shape) -> tuple[int, int]:
    """Return the total server memory (or the server count without a limit), and the memory of a worker."""
    return shape.servers * (shape.server_memory or 1), shape.worker_memory


def _busy_servers(job: JobView, shape: Shape, config: PlanningConfig) -> PlanRequest | None:
    """Request more server CPU, then more servers. While servers are saturated, their usage does not show what a worker
    needs."""
    used = measurements.use(job, RoleKind.SERVER)
    if used is None or used.share <= config.busy_server:
        return None
    larger = clamp.within(replace(shape, server_cpu=2 * shape.server_cpu), job.bounds, config)
    if larger.server_cpu <= shape.server_cpu or larger.workers < shape.workers:
        larger = clamp.within(replace(shape, servers=2 * shape.servers), job.bounds, config)
    if larger == shape or larger.cpu <= shape.cpu or larger.workers < shape.workers:
        return None
    why = f"{used.hottest.role} uses {used.share:.0%} of its CPU while sampling: it gets more, then sampling continues"
    return PlanRequest(plan=_plan(job, larger, why, config, PlanningStage.SAMPLING), rank=SIZE)


def need(job: JobView, shape: Shape) -> MeasuredNeed | None:
    workers, servers = measurements.use(job, RoleKind.WORKER), measurements.use(job, RoleKind.SERVER)
    if workers is None or servers is None:
        return None
    found = MeasuredNeed(
        worker_cpu=workers.used / workers.count,
        server_cpu=servers.used / max(shape.workers, workers.count),
        worker_memory=max((use.memory_used for use in job.used_by(RoleKind.WORKER)), default=0),
    )
    return found if found.sound else None


def _servers(job: JobView, shape: Shape, config: PlanningConfig) -> PlanRequest | None:
    measured = need(job, shape)
    if measured is None:
        return None
    right = _with_memory(job, servers_first(shape, measured, job.bounds, config), config)
    if (right.servers, right.server_cpu) == (shape.servers, shape.server_cpu):
        return _workers(job, shape, config)
    why = (
        f"a worker uses {measured.worker_cpu:.1f} cores and {measured.server_cpu:.1f} of servers: "
        f"{right.servers} servers of {right.server_cpu:g} for {clamp.quota(job.bounds, config).cpu:g} in all"
    )
    return PlanRequest(plan=_plan(job, right, why, config, PlanningStage.OPTIMIZING), rank=SIZE)


def _workers(job: JobView, shape: Shape, config: PlanningConfig) -> PlanRequest | None:
    measured = need(job, shape)
    if measured is None:
        return None
    right = _with_memory(job, workers_then(shape, measured, job.bounds, config), config)
    if abs(right.workers - shape.workers) <= config.least_gain * shape.workers and right.worker_cpu == shape.worker_cpu:
        return None
    why = (
        f"a worker uses {measured.worker_cpu:.1f} cores and {measured.server_cpu:.1f} of servers: "
        f"{right.workers} workers of {right.worker_cpu:g}"
    )
    return PlanRequest(plan=_plan(job, right, why, config, PlanningStage.ADJUSTING), rank=SIZE)


def _with_memory(job: JobView, shape: Shape, config: PlanningConfig) -> Shape:
    """Return the shape with the known memory need per server, and at least the servers that guards requested."""
    asked = [finding.servers or shape.servers + 1 for finding in job.findings if finding.trouble is FindingKind.MEMORY]
    servers = max([shape.servers, *asked])
    memory = job.need.of_server(servers) if job.need.rows or job.need.server else shape.server_memory
    return clamp.within(replace(shape, servers=servers, server_memory=memory), job.bounds, config, need=job.need)


def _plan(job: JobView, shape: Shape, why: str, config: PlanningConfig, stage: PlanningStage | None) -> ShapePlan:
    return ShapePlan(job=job.name, shape=shape, reason=why, cost=cost(shape, config.prices), stage=stage)


FEWEST = 3
"""Fewest windows in each shape; fewer windows do not show how much the measurements vary."""
MOST = 16
"""Most windows of each shape to use, newest first."""
CERTAIN = 3.0
"""The two speeds must differ by this many standard errors."""
LEAST_SPREAD = 0.02
"""Lower limit of the relative spread between windows. A smaller measured spread is assumed to be chance."""


class ShapeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of the current shape with the previous shape."""

    before: Shape
    faster: float
    """Log of the ratio of the earlier speed to the current speed, both as means over windows."""
    certain: bool
    speed: float


def compared(job: JobView) -> ShapeComparison | None:
    """Compare with the shape before the last change; None if either shape has too few measurements."""
    since, now = job.progress.last_change_at, job.shape
    if since is None or now is None:
        return None
    here: list[Profile] = []
    there: list[Profile] = []
    before: Shape | None = None
    for profile in reversed(job.profiles):
        same = profile.shape is now or alike(profile.shape, now)
        if same and before is None:
            if profile.at >= since and len(here) < MOST:
                here.append(profile)
        elif not same and (before is None or profile.shape is before or alike(profile.shape, before)):
            before = profile.shape
            if profile.at < since:
                there.append(profile)
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
    """Return the comparison with the previous shape if the job should return to it. That shape must have been faster,
    significantly and by enough, at no higher cost per sample."""
    found, now = compared(job), job.shape
    if found is None or now is None or not found.certain or found.faster <= math.log1p(config.least_gain):
        return None
    dearer = cost(found.before, config.prices) / cost(now, config.prices)
    return found if dearer <= math.exp(found.faster) and job.bounds.holds(found.before) else None


def refuted(job: JobView, config: PlanningConfig) -> Shape | None:
    """Return the previous shape if it was significantly slower and cost more per sample. The job must not return to
    this shape, whatever a model predicts."""
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
    """Return the log throughput of each window. Leave out windows in which the job trained nothing."""
    speeds = (measurements.throughput(window.shape, window.timing) for window in windows)
    return [math.log(speed) for speed in speeds if speed is not None and speed > 0]


def _mean(logs: Sequence[float]) -> tuple[float, float]:
    mean = sum(logs) / len(logs)
    spread = sum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    return mean, max(LEAST_SPREAD**2, spread) / len(logs)
