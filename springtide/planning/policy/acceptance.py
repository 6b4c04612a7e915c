"""Pure. Validates decisions of policies and advice of advisers, so that a faulty policy cannot harm a job.

A decision may come from third-party code and may hold any type. Advice has the right types, because it came over the
wire or from a validated decision.
"""

import math
from collections.abc import Callable
from typing import Any

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import NOTHING, Shape, resources_of
from springtide.domain.plan.plan import Advice, Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage

SPARE = 1.1
"""Fewest bytes of memory that a plan may give a role, as a multiple of its usage."""


def refused(advice: Advice, job: JobView, config: PlanningConfig, *, epoch: int, now: float) -> str:
    """Return the reason why a master must not follow an adviser's advice; empty if it may follow it."""
    if advice.epoch != epoch:
        return f"the advice is for an earlier state of the job (epoch {advice.epoch}, now {epoch})"
    if advice.data_cores is not None and not 0 <= advice.data_cores < math.inf:
        return f"the advice gives data workers {advice.data_cores!r} cores"
    plan = advice.plan
    if plan is None:
        return ""
    if plan.job != job.name:
        return f"it is for job {plan.job}; this is {job.name}"
    if plan.shape == job.shape:
        return "it changes nothing"
    if fault := plan_fault(plan, job, config):
        return fault
    quiet = job.progress.unchanged_s(at=now)
    urgent = job.shape is not None and _more_memory(plan.shape, job.shape)
    begun = job.progress.last_change_at is None and job.stage in (PlanningStage.WAITING, PlanningStage.SAMPLING)
    if quiet < config.between_changes_s and not urgent and not begun and job.shape is not None:
        return f"the job changed {quiet:.0f} s ago; at least {config.between_changes_s:.0f} s must pass between changes"
    return _too_little_memory(plan.shape, job)


def _more_memory(shape: Shape, now: Shape) -> bool:
    """Return True if rows or workers get more memory, because this must not wait."""
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


Policy = Callable[[ClusterView, PlanningConfig], Decision]


def decide(policy: Policy, view: ClusterView, config: PlanningConfig) -> Decision:
    name = getattr(policy, "__name__", type(policy).__name__)
    if not math.isfinite(view.now):
        return nothing(f"the cluster's clock has the invalid value {view.now}")
    try:
        decision: Any = policy(view, config)
    except (Exception, SystemExit) as error:  # a policy may be third-party code, and jobs must continue
        return nothing(f"policy {name} failed: {type(error).__name__}: {error}")
    if not isinstance(decision, Decision):
        return nothing(f"policy {name} failed: it answered with {type(decision).__name__}; expected a Decision")
    try:
        if fault := _malformed(decision):
            return nothing(f"policy {name} failed: it answered with an invalid decision: {fault}")
        return without_impossible(decision, view, config)
    except Exception as error:  # the plans of a third-party policy may contain any type
        return nothing(f"policy {name} failed: it answered with invalid plans: {type(error).__name__}: {error}")


def without_impossible(decision: Decision, view: ClusterView, config: PlanningConfig) -> Decision:
    """Return the decision without impossible plans. Apply plans that shrink jobs first, and then plans that grow jobs
    as long as resources last."""
    jobs = {job.name: job for job in view.jobs}
    refused: list[str] = []
    sound: list[ShapePlan] = []
    for plan in decision.plans:
        fault = plan_fault(plan, jobs.get(getattr(plan, "job", "")), config)
        if fault:
            refused.append(f"plan for {getattr(plan, 'job', plan)} refused: {fault}")
        else:
            sound.append(plan)
    taken = {job.name: resources_of(job.shape) for job in view.jobs}
    used = sum(taken.values(), NOTHING)
    accepted: list[ShapePlan] = []
    for growing in (False, True):
        for plan in sound:
            wanted, had = resources_of(plan.shape), taken[plan.job]
            if wanted.exceeds(had) is not growing:
                continue
            then = used - had + wanted
            if growing and not view.capacity.fits(*then.amounts):
                refused.append(
                    f"plan for {plan.job} refused: all jobs would take {then.describe()}; there are "
                    f"{view.capacity.describe()}"
                )
            else:
                used = then
                accepted.append(plan)
    if not refused:
        return decision
    plans = tuple(accepted)
    why = decision.why if plans else f"no plan of the decision is left ({decision.why})"
    return Decision(plans=plans, why=why, notes=(*decision.notes, *refused))


def _malformed(decision: Any) -> str:
    """Describe a field of the wrong type; return an empty text if there is none. Dataclasses do not check types."""
    if not isinstance(decision.plans, tuple):
        return f"its plans are a {type(decision.plans).__name__}; expected a tuple"
    if not isinstance(decision.why, str):
        return f"its reason is {decision.why!r}; expected a sentence"
    if not (isinstance(decision.notes, tuple) and all(isinstance(note, str) for note in decision.notes)):
        return f"its notes are {decision.notes!r}; expected a tuple of sentences"
    return ""


def plan_fault(plan: object, job: JobView | None, config: PlanningConfig) -> str:
    if not isinstance(plan, ShapePlan) or not isinstance(plan.shape, Shape):
        return "it is not a plan"
    if job is None:
        return "the advice names an unknown job"
    shape = plan.shape
    whole = (shape.workers, shape.servers, shape.worker_memory, shape.server_memory)
    if not all(isinstance(number, int) for number in whole):
        return f"{shape.workers!r} workers, {shape.servers!r} servers; expected whole numbers (int), also for bytes"
    if not isinstance(plan.reason, str) or not math.isfinite(shape.cpu + shape.memory):
        return f"it has no reason as text, or no shape: {plan}"
    if not job.bounds.holds(plan.shape):
        return f"{plan.shape} is not within the job's bounds or quota"
    return ""
