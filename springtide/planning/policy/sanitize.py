"""Pure. Validates the decisions of policies, so that a faulty policy cannot harm a job.

In: any policy, built in or not. Out: a `Decision` whose plans name existing jobs and allowed shapes, and fit the
cluster together. Notes list the refused plans. A policy that raises or returns another type decides nothing. Next: a
master applies the plans.
"""

import math
from collections.abc import Callable
from typing import Any

from springtide.domain.core.shape import ROUNDING, ResourceBudget, Shape
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningConfig

Policy = Callable[[ClusterView, PlanningConfig], Decision]


def decide(policy: Policy, view: ClusterView, config: PlanningConfig) -> Decision:
    name = getattr(policy, "__name__", type(policy).__name__)
    if not math.isfinite(view.now):
        return nothing(f"the cluster's clock says {view.now}: nothing can be decided by it")
    try:
        decision: Any = policy(view, config)
    except (Exception, SystemExit) as error:  # a policy may be third-party code; jobs must continue
        return nothing(f"policy {name} failed: {type(error).__name__}: {error}")
    if not isinstance(decision, Decision):
        return nothing(f"policy {name} failed: it answered with {type(decision).__name__}; wanted a Decision")
    try:
        if fault := _malformed(decision):
            return nothing(f"policy {name} failed: it answered with a decision that is none: {fault}")
        return kept(decision, view, config)
    except Exception as error:  # plans may contain any type
        return nothing(
            f"policy {name} failed: it answered with plans that make no sense: {type(error).__name__}: {error}"
        )


def kept(decision: Decision, view: ClusterView, config: PlanningConfig) -> Decision:
    """Return the decision without impossible plans. Shrinking plans come first, then growing plans while there is
    room."""
    jobs = {job.name: job for job in view.jobs}
    refused: list[str] = []
    sound: list[ShapePlan] = []
    for plan in decision.plans:
        fault = wrong(plan, jobs.get(getattr(plan, "job", "")), config)
        if fault:
            refused.append(f"plan for {getattr(plan, 'job', plan)} refused: {fault}")
        else:
            sound.append(plan)
    taken = {job.name: _now(job.shape) for job in view.jobs}
    cpu, memory = sum(each.cpu for each in taken.values()), sum(each.memory for each in taken.values())
    accepted: list[ShapePlan] = []
    for growing in (False, True):
        for plan in sound:
            wanted, had = takes(plan), taken[plan.job]
            if (wanted.cpu > had.cpu or wanted.memory > had.memory) is not growing:
                continue
            all_cpu, all_memory = cpu + wanted.cpu - had.cpu, memory + wanted.memory - had.memory
            if growing and not holds(view.capacity, all_cpu, all_memory):
                refused.append(
                    f"plan for {plan.job} refused: all jobs would take {all_cpu:,.1f} cores and "
                    f"{all_memory / 2**30:,.1f} GiB; there are {view.capacity.cpu:,.1f} and "
                    f"{view.capacity.memory / 2**30:,.1f}"
                )
            else:
                cpu, memory = all_cpu, all_memory
                accepted.append(plan)
    if not refused:
        return decision
    plans = tuple(accepted)
    why = decision.why if plans else f"nothing is left of the decision ({decision.why})"
    return Decision(plans=plans, why=why, notes=(*decision.notes, *refused))


def _malformed(decision: Any) -> str:
    """Return a description of a wrongly typed field; empty if none. Dataclasses do not check types."""
    if not isinstance(decision.plans, tuple):
        return f"its plans are a {type(decision.plans).__name__}; wanted a tuple"
    if not isinstance(decision.why, str):
        return f"its reason is {decision.why!r}; wanted a sentence"
    if not (isinstance(decision.notes, tuple) and all(isinstance(note, str) for note in decision.notes)):
        return f"its notes are {decision.notes!r}; wanted a tuple of sentences"
    return ""


def wrong(plan: object, job: JobView | None, config: PlanningConfig) -> str:
    """Return the fault of a single plan; empty if none."""
    if not isinstance(plan, ShapePlan) or not isinstance(plan.shape, Shape):
        return "it is no plan"
    if job is None:
        return "there is no such job"
    whole = (plan.shape.workers, plan.shape.servers, plan.extra_workers)
    if not all(isinstance(number, int) for number in whole):
        return f"{plan.shape.workers!r} workers, {plan.shape.servers!r} servers; wanted whole numbers (int)"
    if not math.isfinite(plan.shape.cpu + plan.shape.memory):
        return f"its shape is no shape: {plan.shape}"
    if not job.bounds.holds(plan.shape):
        return f"{plan.shape} is not within the job's bounds or quota"
    if plan.extra_workers > config.extra_workers:
        return f"{plan.extra_workers} extra workers; at most {config.extra_workers} may be beyond the quota"
    most = min(job.bounds.most.server_cpu, config.node_cpu)
    for rank, cpu in plan.server_cpus:
        if not (0 <= rank < plan.shape.servers and 0 < cpu <= max(most, plan.shape.server_cpu)):
            return f"server-{rank} with {cpu:g} cores; wanted one of {plan.shape.servers} with at most {most:g}"
    return ""


def takes(plan: ShapePlan) -> ResourceBudget:
    """Return all resources of a plan: its shape, extra workers, and enlarged servers."""
    shape = plan.shape
    hot = sum(cpu - shape.server_cpu for _, cpu in plan.server_cpus)
    return ResourceBudget(
        cpu=max(0.0, shape.cpu + hot) + plan.extra_workers * shape.worker_cpu,
        memory=shape.memory + plan.extra_workers * shape.worker_memory,
    )


def holds(capacity: ResourceBudget, cpu: float, memory: float) -> bool:
    return cpu <= capacity.cpu * (1 + ROUNDING) and memory <= capacity.memory * (1 + ROUNDING)


def _now(shape: Shape | None) -> ResourceBudget:
    return ResourceBudget(cpu=shape.cpu if shape else 0.0, memory=shape.memory if shape else 0.0)
