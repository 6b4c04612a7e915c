"""Pure. Functions that the baselines share: first shape of a job, and one plan per job. In: views. Next: the other
baselines."""

import math
from collections.abc import Callable
from dataclasses import replace

from springtide.domain.core.shape import Shape, cost
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import clamp
from springtide.planning.lifecycle import warm_start
from springtide.planning.perf_model import measurements

Step = ShapePlan | str
"""Plan of one job, or the reason why it has none."""


def each(view: ClusterView, why: str, step: Callable[[JobView], Step]) -> Decision:
    """Decide each job separately. `planning.policy.sanitize` enforces the capacity in order of plans, best gain per
    cost first."""
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
    """Return a plan for the shape within the job's bounds, or a reason if the job already has that shape."""
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
    quiet, every = measurements.unchanged_s(job, at=view.now), config.steps.every_s
    started = job.launches[-1].seconds if job.launches else 0.0
    if quiet >= max(every - started if math.isfinite(started) else every, config.sample_s):
        return ""
    return f"changed {quiet:.0f} s ago; looked at every {every:.0f} s, {started:.0f} s to start among them"


def sizes(job: JobView, config: PlanningConfig) -> Shape:
    """Return the role sizes for policies that never change them: the user's, or those of a small start."""
    return job.requested or warm_start.cold(job, config, "nothing was asked for").shape


def of(job: JobView, config: PlanningConfig, *, workers: int, servers: int) -> Step:
    begun = replace(sizes(job, config), workers=workers, servers=servers)
    return plan(
        job, begun, f"begins with {workers} workers and {servers} servers", config, stage=PlanningStage.ADJUSTING
    )
