"""Pure. DLRover's shipped heuristics: thresholds on server usage, without a performance model.

In: CPU and memory usage, measured speeds, past jobs of the same scenario. Out: one plan per job with one remedy at a
time. The order is: out of memory, predicted memory shortage, hot servers, workers. Each constant says whether its value
comes from DLRover's defaults or is ours.
"""

import math
from dataclasses import replace

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import GIB, Shape
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView, FindingKind, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.perf_model import measurements
from springtide.planning.policy.baselines import es, starts

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
"""Share of an old worker's gain below which no more workers are added (DLRover's value)."""
MEMORY_HIGH, MORE_MEMORY = 0.8, 8 * GIB
BALANCED = 1.2
"""Ratio of the fullest server to the mean below which memory is balanced (our value)."""


def dlrover(view: ClusterView, config: PlanningConfig) -> Decision:
    """Apply one remedy per job at a time, with the minimum time between changes."""

    def step(job: JobView) -> starts.Step:
        if job.shape is None:
            return _begin(job, view, config)
        quiet = measurements.unchanged_s(job, at=view.now)
        ran_out = [one for one in job.findings if one.trouble is FindingKind.OOM]
        if quiet < config.between_changes_s and not ran_out:
            return f"changed {quiet:.0f} s ago; wanted {config.between_changes_s:.0f} s"
        if ran_out:
            return _after_oom(job, job.shape, ran_out[0].role.kind, config)
        return _remedy(job, job.shape, config)

    return starts.each(view, "DLRover's thresholds", step)


def _begin(job: JobView, view: ClusterView, config: PlanningConfig) -> starts.Step:
    alike = [one for one in view.history if _same_scenario(job, one) and view.now - one.ended_at <= WINDOW_S]
    shapes = [one.shape for one in alike if one.shape is not None]
    if not shapes:
        return starts.plan(
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
    return starts.plan(
        job, begun, f"mean of {len(shapes)} jobs of this scenario, and a margin", config, stage=PlanningStage.SAMPLING
    )


def _same_scenario(job: JobView, past: PastJob) -> bool:
    for name in ("scenario", "model"):
        if name in job.features:
            return past.features.get(name) == job.features[name]
    return bool(job.user) and past.user == job.user


def _after_oom(job: JobView, shape: Shape, kind: RoleKind, config: PlanningConfig) -> starts.Step:
    """Double the memory after a kill, or double the servers if all were equally full."""
    if kind is RoleKind.WORKER:
        return starts.plan(
            job,
            replace(shape, worker_memory=2 * shape.worker_memory),
            "a worker ran out of memory: twice as much for each",
            config,
        )
    held = [use.memory_used for use in job.used_by(RoleKind.SERVER)]
    if held and max(held) <= BALANCED * sum(held) / len(held):
        return starts.plan(
            job, replace(shape, servers=2 * shape.servers), "servers ran out of memory: twice as many", config
        )
    return starts.plan(
        job,
        replace(shape, server_memory=2 * shape.server_memory),
        "a server ran out of memory: twice as much for each",
        config,
    )


def _remedy(job: JobView, shape: Shape, config: PlanningConfig) -> starts.Step:
    servers = job.used_by(RoleKind.SERVER)
    if any(use.memory > 0 and use.memory_used > MEMORY_HIGH * use.memory for use in servers):
        more = replace(shape, server_memory=shape.server_memory + MORE_MEMORY)
        return starts.plan(job, more, f"a server uses over {MEMORY_HIGH:.0%} of its memory", config)
    used = measurements.use(job, RoleKind.SERVER)
    if used is None:
        return "nothing is known of what its servers use"
    if used.share > OVERLOAD and shape.server_cpu < min(config.node_cpu, job.bounds.most.server_cpu):
        larger = replace(shape, server_cpu=math.ceil(shape.server_cpu * used.share / OVERLOAD + 1))
        return starts.plan(job, larger, f"{used.hottest.role} uses {used.share:.0%}: more CPU for all servers", config)
    return _workers(job, shape, used.share, config)


def _workers(job: JobView, shape: Shape, busiest: float, config: PlanningConfig) -> starts.Step:
    """Add workers until the busiest server would reach the threshold."""
    if busiest > FULL and shape.workers > 1:
        return starts.plan(job, replace(shape, workers=shape.workers - 1), "a server is full: a worker less", config)
    here = measurements.now(job)
    if here is None:
        return "nothing sensible was measured in this shape"
    fewer = [m for m in measurements.by_shape(job) if es.same_but_workers(m, here) and m.shape.workers < shape.workers]
    if fewer and (paid := es.efficiency(max(fewer, key=lambda m: m.shape.workers), here)) < LEAST_SPEEDUP:
        return f"the newest workers brought {paid:.2f} of the others each: no more are added"
    wanted = min(math.floor(shape.workers * OVERLOAD / max(busiest, 1e-3)), shape.workers + MOST_MORE)
    if wanted <= shape.workers:
        return f"servers are {busiest:.0%} busy: neither idle nor overloaded"
    gain = here.throughput * (wanted / shape.workers - 1)
    return starts.plan(job, replace(shape, workers=wanted), f"servers are {busiest:.0%} busy only", config, gain=gain)
