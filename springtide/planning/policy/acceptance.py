"""Pure. Validates advice against the current state of the job; no adviser is trusted.

In: the answer of an adviser, of any type, and the job's current view of itself. Out: the reason for refusal, or an
empty string. Next: `master.autoscale.loop` applies the advice, or logs the reason.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import FIELDS, Shape
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.plan.view import JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import switch_cost
from springtide.planning.perf_model import fit, measurements
from springtide.planning.perf_model.shape_columns import columns
from springtide.planning.policy import sanitize

SPARE = 1.1
"""Minimum memory of a role as a multiple of its usage."""


def refused(advice: Any, job: JobView, config: PlanningConfig, *, epoch: int, now: float) -> str:
    """Return the reason for refusing the advice; empty if its plan can be applied or it has no plan."""
    try:
        return _refused(advice, job, config, epoch=epoch, now=now)
    except Exception as error:  # an adviser may send wrong types or miss fields; the job must continue
        return f"it makes no sense: {type(error).__name__}: {error}"


def _refused(advice: Any, job: JobView, config: PlanningConfig, *, epoch: int, now: float) -> str:
    if not isinstance(advice, Advice) or not isinstance(advice.why, str) or not advice.why:
        return f"it is no advice but {type(advice).__name__}"
    if advice.epoch != epoch:
        return f"it is for the job as it was (epoch {advice.epoch}, now {epoch})"
    cores = advice.data_cores
    if cores is not None and not (isinstance(cores, (int, float)) and 0 <= cores < math.inf):
        return f"it gives data workers {cores!r} cores"
    plan = advice.plan
    if plan is None:
        return ""
    if not isinstance(plan, ShapePlan) or not isinstance(plan.shape, Shape) or not _sound(plan):
        return "its plan is none"
    if plan.job != job.name:
        return f"it is for job {plan.job}; this is {job.name}"
    if job.shape is not None and _nothing_changes(plan, job, job.shape):
        return "it changes nothing"
    if wrong := sanitize.wrong(plan, job, config):
        return wrong
    takes, quota = sanitize.takes(plan), job.bounds.quota
    # extra workers use only spare CPU, but they do use memory
    cpu = takes.cpu - plan.extra_workers * plan.shape.worker_cpu
    if not sanitize.holds(quota, cpu, takes.memory):
        return f"it takes {cpu:g} cores and {takes.memory:g} bytes; the quota is {quota.cpu:g} and {quota.memory:g}"
    if job.shape is not None and plan.shape == job.shape and plan.extra_workers < job.extra_workers:
        return ""  # workers beyond the quota are removed without delay
    quiet = measurements.unchanged_s(job, at=now)
    urgent = job.shape is not None and _more_memory(plan.shape, job.shape)
    begun = job.last_change_at is None and job.stage in (PlanningStage.WAITING, PlanningStage.SAMPLING)
    if quiet < config.between_changes_s and not urgent and not begun and job.shape is not None:
        return f"the job was changed {quiet:.0f} s ago; wanted {config.between_changes_s:.0f} s between changes"
    return _too_little_memory(plan.shape, job)


def _sound(plan: ShapePlan) -> bool:
    """Return True if all numbers have the right type."""
    whole = (plan.shape.workers, plan.shape.servers, plan.shape.worker_memory, plan.shape.server_memory)
    given = (*(getattr(plan.shape, name) for name in FIELDS), *(cpu for _, cpu in plan.server_cpus))
    return (
        all(isinstance(each, int) and not isinstance(each, bool) for each in (*whole, plan.extra_workers))
        and all(isinstance(each, int | float) and math.isfinite(each) for each in given)
        and isinstance(plan.reason, str)
        and bool(plan.reason)
    )


def _nothing_changes(plan: ShapePlan, job: JobView, now: Shape) -> bool:
    return plan.shape == now and not plan.server_cpus and plan.extra_workers == job.extra_workers


def _more_memory(shape: Shape, now: Shape) -> bool:
    """Return True if rows or workers get more memory, which must not wait."""
    return (
        shape.servers * shape.server_memory > now.servers * now.server_memory
        or shape.worker_memory > now.worker_memory
        or (now.server_memory == shape.server_memory and shape.servers > now.servers and now.server_memory > 0)
    )


def _too_little_memory(shape: Shape, job: JobView) -> str:
    for kind, given in ((RoleKind.WORKER, shape.worker_memory), (RoleKind.SERVER, shape.server_memory)):
        used = max((use.memory_used for use in job.used_by(kind)), default=0)
        if given and given < SPARE * used:
            return f"a {kind} uses {used} bytes and would get {given}"
    return ""


WORTH_S = 600.0
"""Seconds of training over which a change is evaluated, unless the job ends earlier."""


def servers_first(job: JobView, to: Shape, config: PlanningConfig) -> bool:
    """Return True if changing servers first pays more than changing workers first. Without a model: if servers lack
    CPU."""
    now, here = job.shape, measurements.now(job)
    if now is None or here is None:
        return False
    with np.errstate(all="ignore"):  # measurements may hold any value; NaN compares as not greater
        return _pays_more(job, now, to, here.throughput, config)


def _pays_more(job: JobView, now: Shape, to: Shape, throughput: float, config: PlanningConfig) -> bool:
    pace = measurements.pace_of(job, throughput)
    model = fit.fit(job.profiles, job.facts, pace)
    if not isinstance(model, fit.FittedModel):
        busy = measurements.use(job, RoleKind.SERVER)
        return busy is not None and busy.share > config.busy_server
    steps = (
        replace(now, workers=to.workers, worker_cpu=to.worker_cpu, worker_memory=to.worker_memory),
        replace(now, servers=to.servers, server_cpu=to.server_cpu, server_memory=to.server_memory),
    )
    speeds = np.array([min(model.predict(step), measurements.ceiling_of(pace, step)) for step in steps])
    samples = min(job.remaining, WORTH_S * throughput)
    by_workers, by_servers = switch_cost.mean_throughput(now, columns(steps), job.launches, throughput, speeds, samples)
    return bool(by_servers > by_workers)
