"""Pure. Baseline policies: static (the user's shape), es (steps of workers), Optimus, and DLRover's shipped thresholds.

Each decides one job at a time from measured speeds and usage. es and Optimus are the baselines of DLRover's section
6.3. The comments on the constants say whether a value is DLRover's default or Springtide's choice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import GIB, Shape, cost
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, FindingKind, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import warm_start
from springtide.planning.perf_model import measurements
from springtide.planning.perf_model.measurements import ShapeSpeed

Step = ShapePlan | str
"""Plan of one job, or the reason why it has none."""


def each(view: ClusterView, why: str, step: Callable[[JobView], Step]) -> Decision:
    """Decide each job separately. `acceptance` enforces the capacity, best gain per cost first."""
    plans, notes = [], []
    for job in view.jobs:
        made = step(job)
        if isinstance(made, ShapePlan):
            plans.append(made)
        else:
            notes.append(f"{job.name}: {made}")
    plans.sort(key=lambda plan: plan.gain / max(plan.cost, 1e-9), reverse=True)
    return Decision(plans=tuple(plans), why=f"{why}: {len(plans)} of {len(view.jobs)} jobs change", notes=tuple(notes))


def plan(
    job: JobView,
    shape: Shape,
    reason: str,
    config: PlanningConfig,
    *,
    gain: float = 0.0,
    stage: PlanningStage | None = None,
) -> Step:
    allowed = clamp.clipped(shape, job.bounds, config)
    held = clamp.smaller(allowed, job.bounds, job.bounds.quota)
    if held is None or held == job.shape:
        return f"{reason}; its bounds leave it as it is"
    return ShapePlan(job=job.name, shape=held, reason=reason, gain=gain, cost=cost(held, config.prices), stage=stage)


def too_soon(job: JobView, view: ClusterView, config: PlanningConfig) -> str:
    """Return the reason why a step policy waits; empty if it may act.

    The time between steps includes the start of pods (DLRover, section 6.3: 20 s to launch, 100 s to begin, 60 s to
    sample). A job counts as changed after the pods have started, so only the sample time remains.
    """
    quiet, every = job.progress.unchanged_s(at=view.now), config.steps.every_s
    started = job.launches[-1].seconds if job.launches else 0.0
    if quiet >= max(every - started if math.isfinite(started) else every, config.sample_s):
        return ""
    return f"changed {quiet:.0f} s ago; looked at every {every:.0f} s, {started:.0f} s to start among them"


def sizes(job: JobView, config: PlanningConfig) -> Shape:
    """Return the role sizes for policies that never change sizes: the sizes that the user requested, or the sizes of a
    small start."""
    return job.requested or warm_start.cold(job, config, "nothing was asked for").shape


def of(job: JobView, config: PlanningConfig, *, workers: int, servers: int) -> Step:
    begun = replace(sizes(job, config), workers=workers, servers=servers)
    return plan(
        job, begun, f"begins with {workers} workers and {servers} servers", config, stage=PlanningStage.ADJUSTING
    )


def static(view: ClusterView, config: PlanningConfig) -> Decision:
    """Start each job with its user's shape (or a small shape without a request) and never change it."""

    def step(job: JobView) -> Step:
        if job.shape is not None:
            return "stays as its user asked for"
        asked = sizes(job, config)
        return plan(job, asked, f"as its user asked for: {asked}", config, stage=PlanningStage.ADJUSTING)

    return each(view, "users decide", step)


def es(view: ClusterView, config: PlanningConfig) -> Decision:
    """Add workers while each new worker gains more than a threshold share of an existing worker's throughput."""

    def step(job: JobView) -> Step:
        if job.shape is None:
            servers = sizes(job, config).servers
            return of(job, config, workers=1, servers=servers)
        if soon := too_soon(job, view, config):
            return soon
        here = measurements.now(job)
        return "nothing sensible was measured in this shape" if here is None else _next(job, here, config)

    return each(view, "workers by steps", step)


def _next(job: JobView, here: ShapeSpeed, config: PlanningConfig) -> Step:
    others = [one for one in measurements.by_shape(job) if same_but_workers(one, here)]
    fewer = max((one for one in others if one.shape.workers < here.shape.workers), key=_workers, default=None)
    more = min((one for one in others if one.shape.workers > here.shape.workers), key=_workers, default=None)
    if fewer is not None and (paid := efficiency(fewer, here)) <= config.steps.threshold:
        back = f"{here.shape.workers - fewer.shape.workers} workers less: each brought {paid:.2f} of the others"
        return plan(job, fewer.shape, back, config, gain=fewer.throughput - here.throughput)
    if more is not None and (paid := efficiency(here, more)) <= config.steps.threshold:
        return f"{more.shape.workers} workers were tried: each new one brought {paid:.2f} of the others"
    grown = replace(here.shape, workers=here.shape.workers + config.steps.workers)
    bet = here.throughput / here.shape.workers * config.steps.workers
    return plan(job, grown, f"{config.steps.workers} workers more: they paid so far", config, gain=bet)


def same_but_workers(one: ShapeSpeed, other: ShapeSpeed) -> bool:
    return replace(one.shape, workers=1) == replace(other.shape, workers=1) and one.shape != other.shape


def efficiency(fewer: ShapeSpeed, more: ShapeSpeed) -> float:
    new = (more.throughput - fewer.throughput) / (more.shape.workers - fewer.shape.workers)
    old = fewer.throughput / fewer.shape.workers
    return new / old if old > 0 else math.inf


def _workers(one: ShapeSpeed) -> int:
    return one.shape.workers


FEWEST = 3
"""Minimum number of measured shapes for the model. Until then, workers and servers are added in turn."""
LEAST_GAIN = 0.01
"""Share of the speed below which a gain is noise."""


def optimus(view: ClusterView, config: PlanningConfig) -> Decision:
    """Scale in steps of several workers and servers. This variant of Optimus, by DLRover's authors, is faster than the
    original."""
    return _decide(view, config, workers=config.steps.workers, servers=config.steps.servers, together=True)


def optimus_one(view: ClusterView, config: PlanningConfig) -> Decision:
    """Scale by one worker or one server at a time, as in the original."""
    return _decide(view, config, workers=1, servers=1, together=False)


def _decide(view: ClusterView, config: PlanningConfig, *, workers: int, servers: int, together: bool) -> Decision:
    def step(job: JobView) -> Step:
        if job.shape is None:
            return of(job, config, workers=1, servers=1)
        if soon := too_soon(job, view, config):
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
            return plan(job, probe, f"a probe: {len(seen)} of {FEWEST} shapes measured", config, gain=1e-9)
        return _by_model(job, here, seen, steps, config, a_core=not together)

    how = "and" if together else "or"
    return each(view, f"Optimus, by {workers} workers {how} {servers} servers", step)


def _steps(now: Shape, workers: int, servers: int, *, together: bool) -> list[Shape]:
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
) -> Step:
    model = fit(seen)
    base = speed(model, here.shape)
    gains = [speed(model, shape) - base for shape in steps]
    cores = [max(one.cpu - here.shape.cpu, 1e-9) if a_core else 1.0 for one in steps]
    best = max(range(len(steps)), key=lambda at: gains[at] / cores[at])
    if gains[best] <= LEAST_GAIN * base:
        return f"neither workers nor servers more would bring anything ({gains[best] / max(base, 1e-9):+.1%})"
    reason = f"{steps[best]}: {base:,.0f} -> {base + gains[best]:,.0f} samples/s by the speed model"
    return plan(job, steps[best], reason, config, gain=gains[best])


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


COLD = Shape(workers=4, servers=4, worker_cpu=12, server_cpu=12, worker_memory=16 * GIB, server_memory=16 * GIB)
"""DLRover's cold start: 4 servers with 12 CPU and 16 GB, and equal workers."""
MARGIN = 1.2
"""Factor on the mean of past jobs (our value)."""
WINDOW_S = 14 * 86_400.0
OVERLOAD = 0.8
"""CPU share above which a server is overloaded. DLRover's threshold lies between 0.8 and 0.9."""
FULL = 0.99
"""CPU share above which one worker is removed (DLRover's value)."""
MOST_MORE = 8
"""Maximum number of workers added in one step (DLRover's value)."""
LEAST_SPEEDUP = 0.2
"""If a new worker gains less than this share of an existing worker's throughput, no more workers are added (DLRover's
value)."""
MEMORY_HIGH, MORE_MEMORY = 0.8, 8 * GIB
BALANCED = 1.2
"""Ratio of the fullest server to the mean below which memory is balanced (our value)."""


def dlrover(view: ClusterView, config: PlanningConfig) -> Decision:
    """Apply one remedy per job at a time, with the minimum time between changes."""

    def step(job: JobView) -> Step:
        if job.shape is None:
            return _begin(job, view, config)
        quiet = job.progress.unchanged_s(at=view.now)
        ran_out = [one for one in job.findings if one.trouble is FindingKind.OOM]
        if quiet < config.between_changes_s and not ran_out:
            return f"changed {quiet:.0f} s ago; at least {config.between_changes_s:.0f} s must pass"
        if ran_out:
            return _after_oom(job, job.shape, ran_out[0].role.kind, config)
        return _remedy(job, job.shape, config)

    return each(view, "DLRover's thresholds", step)


def _begin(job: JobView, view: ClusterView, config: PlanningConfig) -> Step:
    alike = [one for one in view.history if _same_scenario(job, one) and view.now - one.ended_at <= WINDOW_S]
    shapes = [one.shape for one in alike if one.shape is not None]
    if not shapes:
        return plan(
            job, COLD, "cold start: no job of this scenario in the window", config, stage=PlanningStage.SAMPLING
        )
    mean = {name: sum(getattr(one, name) for one in shapes) / len(shapes) for name in Shape.__slots__}
    begun = Shape(
        workers=max(1, round(mean["workers"])),
        servers=max(1, round(mean["servers"])),
        worker_cpu=mean["worker_cpu"] * MARGIN,
        server_cpu=mean["server_cpu"] * MARGIN,
        worker_memory=round(mean["worker_memory"] * MARGIN),
        server_memory=round(mean["server_memory"] * MARGIN),
    )
    return plan(
        job, begun, f"mean of {len(shapes)} jobs of this scenario, and a margin", config, stage=PlanningStage.SAMPLING
    )


def _same_scenario(job: JobView, past: PastJob) -> bool:
    own = job.identity
    for name in ("scenario", "model"):
        if name in own.features:
            return past.features.get(name) == own.features[name]
    return bool(own.user) and past.user == own.user


def _after_oom(job: JobView, shape: Shape, kind: RoleKind, config: PlanningConfig) -> Step:
    """Double the memory after a kill, or double the servers if all were equally full."""
    if kind is RoleKind.WORKER:
        return plan(
            job,
            replace(shape, worker_memory=2 * shape.worker_memory),
            "a worker ran out of memory: twice as much for each",
            config,
        )
    held = [use.memory_used for use in job.used_by(RoleKind.SERVER)]
    if held and max(held) <= BALANCED * sum(held) / len(held):
        return plan(job, replace(shape, servers=2 * shape.servers), "servers ran out of memory: twice as many", config)
    return plan(
        job,
        replace(shape, server_memory=2 * shape.server_memory),
        "a server ran out of memory: twice as much for each",
        config,
    )


def _remedy(job: JobView, shape: Shape, config: PlanningConfig) -> Step:
    servers = job.used_by(RoleKind.SERVER)
    if any(use.memory > 0 and use.memory_used > MEMORY_HIGH * use.memory for use in servers):
        more = replace(shape, server_memory=shape.server_memory + MORE_MEMORY)
        return plan(job, more, f"a server uses over {MEMORY_HIGH:.0%} of its memory", config)
    used = measurements.use(job, RoleKind.SERVER)
    if used is None:
        return "nothing is known of what its servers use"
    if used.share > OVERLOAD and shape.server_cpu < min(config.node_cpu, job.bounds.most.server_cpu):
        larger = replace(shape, server_cpu=math.ceil(shape.server_cpu * used.share / OVERLOAD + 1))
        return plan(job, larger, f"{used.hottest.role} uses {used.share:.0%}: more CPU for all servers", config)
    return _more_workers(job, shape, used.share, config)


def _more_workers(job: JobView, shape: Shape, busiest: float, config: PlanningConfig) -> Step:
    """Add workers until the busiest server would reach the threshold."""
    if busiest > FULL and shape.workers > 1:
        return plan(job, replace(shape, workers=shape.workers - 1), "a server is full: a worker less", config)
    here = measurements.now(job)
    if here is None:
        return "nothing sensible was measured in this shape"
    fewer = [m for m in measurements.by_shape(job) if same_but_workers(m, here) and m.shape.workers < shape.workers]
    if fewer and (paid := efficiency(max(fewer, key=lambda m: m.shape.workers), here)) < LEAST_SPEEDUP:
        return f"the newest workers brought {paid:.2f} of the others each: no more are added"
    wanted = min(math.floor(shape.workers * OVERLOAD / max(busiest, 1e-3)), shape.workers + MOST_MORE)
    if wanted <= shape.workers:
        return f"servers are {busiest:.0%} busy: neither idle nor overloaded"
    gain = here.throughput * (wanted / shape.workers - 1)
    return plan(job, replace(shape, workers=wanted), f"servers are {busiest:.0%} busy only", config, gain=gain)
