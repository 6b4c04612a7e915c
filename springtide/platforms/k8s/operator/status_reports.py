"""Pure. Builds the operator's reports: the statuses of the plan and of the job, and events for people.

The operator sets the phase only until the job's master runs. The operator always sets the conditions `Accepted`,
`MasterRunning` and `PodsRunning`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from springtide.domain.plan.scale_plan import PlanStatus, PodState
from springtide.domain.spec import schema
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import pod_status
from springtide.platforms.k8s.objects.job_objects import (
    ACCEPTED_SPEC,
    FAILED,
    PENDING,
    STOPPED,
    JobCondition,
    JobObject,
    merge_patch,
    with_conditions,
)
from springtide.platforms.k8s.operator import job_view, lifecycle, pod_plan
from springtide.platforms.k8s.operator.job_view import OperatorView

ACCEPTED, PODS_RUNNING = "Accepted", "PodsRunning"
SHOWN = 3
FINE = (pod_status.RUNNING, pod_status.SUCCEEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Outcome of the steps of a visit."""

    pods: Mapping[str, PodState] = field(default_factory=dict)
    """States of pods that were created, refused or asked to change."""
    made: Mapping[str, int] = field(default_factory=dict)
    budget: int | None = None
    master: tuple[int, int] | None = None
    """Number of the master pod that was created, and number of short-lived masters in a row before it; None if no
    master pod was created.
    """
    master_refused: str = ""
    taken: bool = False
    """True if an object of another owner blocked the step. That object may disappear soon."""


@dataclass(frozen=True, slots=True)
class JobNotice:
    """An event for people."""

    kind: str
    reason: str
    message: str


def plan_status(view: OperatorView, outcome: StepOutcome) -> PlanStatus:
    plan, before = pod_plan.wanted(view), view.plan_status
    known = replace(before, in_place_resize=view.can_resize, **job_view.capacity_for(view.job, view.nodes))
    if plan is None:
        return replace(known, phase="", message=view.plan_fault)
    states = {
        name: outcome.pods.get(name) or pod_plan.state_of(view, entry)
        for name, entry in zip(plan.names, plan.pods, strict=True)
    }
    made = {}
    for entry, name in zip(plan.pods, plan.names, strict=True):
        role = str(entry.life.role)
        lives = [before.made.get(role, -1), outcome.made.get(role, -1), entry.incarnation if name in view.pods else -1]
        if max(lives) >= 0:
            made[role] = max(lives)
    message = pods_message(states)
    return replace(
        known,
        phase="Applying" if message else "Applied",
        message=message,
        made=made,
        pods=states,
        budget=before.budget if outcome.budget is None else outcome.budget,
        observed_generation=view.plan_generation,
    )


def pods_message(states: Mapping[str, PodState]) -> str:
    bad = {name: state for name, state in states.items() if state.phase not in FINE}
    if not bad:
        return ""
    reasons = [f"{name} {state.phase}" + (f" ({state.why})" if state.why else "") for name, state in bad.items()]
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return f"{len(states) - len(bad)} of {len(states)} pods run; " + "; ".join(reasons[:SHOWN]) + more


def job_status(view: OperatorView, outcome: StepOutcome, plan: PlanStatus) -> dict[str, Any] | None:
    job = view.job
    conditions, change = [_accepted(job)], {} if job.over else accepted_spec(job)
    if not job.over:
        master = lifecycle.master_condition(view, outcome.master is not None, outcome.master_refused)
        conditions.append(master)
        change |= _before_master(job, master)
        if outcome.master is not None:
            number, row = outcome.master
            change |= {"masters": number, "mastersInARow": row, "masterMadeAt": kinds.timestamp(view.at)}
    if plan.pods:
        conditions.append(_pods_condition(plan))
    return _changed(job, change, conditions, view.at)


def _accepted(job: JobObject) -> JobCondition:
    if not job.fault:
        return JobCondition(ACCEPTED, True, "Valid")
    generation = (job.status.get(ACCEPTED_SPEC) or {}).get("generation")
    words = f"{job.fault}; the job continues with its previous spec (generation {generation})"
    return JobCondition(ACCEPTED, False, "Invalid", words)


def accepted_spec(job: JobObject) -> dict[str, Any]:
    """Return the status patch that records the last valid spec, for use after an invalid edit."""
    spec, known = schema.spec_of(job.job), job.status.get(ACCEPTED_SPEC) or {}
    if job.fault or known.get("spec") == spec:
        return {}
    return {ACCEPTED_SPEC: merge_patch(known, {"generation": job.generation, "spec": spec})}


def _before_master(job: JobObject, master: JobCondition) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if job.phase in ("", PENDING):
        change["phase"] = PENDING
        change["message"] = master.message or "the master starts"
    elif not master.status:
        change["message"] = master.message
    return change


def _pods_condition(plan: PlanStatus) -> JobCondition:
    bad = [state for state in plan.pods.values() if state.phase not in FINE]
    if not bad:
        return JobCondition(PODS_RUNNING, True, "Running")
    reasons = [state.why.partition(":")[0] for state in bad if state.why]
    word = next((reason for reason in reasons if reason.isalnum()), bad[0].phase)
    return JobCondition(PODS_RUNNING, False, word, plan.message)


def rejected(status: Mapping[str, Any], generation: int, why: str, at: float) -> Object | None:
    """Report an invalid spec. A job that has not started fails; a running job continues with its last valid spec."""
    condition = JobCondition(ACCEPTED, False, "Invalid", why)
    change: dict[str, Any] = {}
    if status.get("phase") in (None, "", PENDING):
        change = {"phase": FAILED, "message": why, "endedAt": kinds.timestamp(at)}
    return _difference(status, change, [condition], generation, at)


def stopped(job: JobObject, why: str, at: float) -> Object | None:
    return _changed(job, {"phase": STOPPED, "message": why, "endedAt": kinds.timestamp(at)}, [], at)


def _changed(job: JobObject, change: dict[str, Any], conditions: list[JobCondition], at: float) -> Object | None:
    return _difference(job.status, change, conditions, job.generation, at)


def _difference(
    status: Mapping[str, Any], change: dict[str, Any], new: list[JobCondition], generation: int, at: float
) -> Object | None:
    old = list(status.get("conditions") or [])
    conditions = with_conditions(old, new, at=kinds.timestamp(at), generation=generation)
    changed = {key: value for key, value in change.items() if status.get(key) != value}
    if conditions != old:
        changed["conditions"] = conditions
    return changed or None


def news(before: Mapping[str, Any], change: Mapping[str, Any]) -> list[JobNotice]:
    known = {condition["type"]: condition for condition in before.get("conditions") or []}
    found = []
    for new in change.get("conditions") or []:
        old = known.get(new["type"], {})
        if (old.get("status"), old.get("reason")) == (new["status"], new["reason"]):
            continue
        if new["status"] == "True" and not old:
            continue  # if the first known state is healthy, report no event
        calm = new["status"] == "True" or new["reason"] in ("Made", "Pending", "Making")
        words = new["message"] or f"{new['type']}: {new['reason']}"
        found.append(JobNotice("Normal" if calm else "Warning", new["reason"], words))
    return found


def plan_patch(before: Mapping[str, Any], status: PlanStatus) -> Object | None:
    new = schema.plain_of(status)
    known = {field.key for field in schema.fields_of(PlanStatus)}
    old = {key: value for key, value in before.items() if key in known}
    return merge_patch(old, new) or None
