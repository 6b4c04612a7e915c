"""Pure. Computes the steps that bring a job's pods to its master's plan.

The operator creates each life of a role once. A deleted pod is reported as `Gone`, and the master then requests the
role's next life. If Kubernetes will remove a node, the operator evicts the node's pods, so that they drain.
"""

from collections.abc import Mapping

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.scale_plan import PodState, PodWish, ScalePlan
from springtide.platforms.k8s.objects import names, pod_status, pods
from springtide.platforms.k8s.objects.pod_status import Pod
from springtide.platforms.k8s.operator.job_view import OperatorView
from springtide.platforms.k8s.operator.lifecycle import (
    LOOK_AGAIN_S,
    OVERDUE_S,
    DeletePod,
    EvictPod,
    MakePod,
    OperatorSteps,
    ResizePod,
    SetBudget,
    Step,
    sooner,
)

KEPT_LIVES = 2
"""Number of ended pods of each role to keep for their logs."""
SETTLED = ("Infeasible", "Unsupported")
"""Replies to a resize that remain valid until the plan changes."""


def decide_pods(view: OperatorView) -> OperatorSteps:
    plan = wanted(view)
    if plan is None:
        return OperatorSteps()
    steps: list[Step] = []
    if (servers := _servers(plan)) != view.plan_status.budget:
        steps.append(SetBudget(servers))
    steps += _kills(view, plan)
    steps += _surplus(view, plan)
    steps += _leaving(view, plan)
    again_s: float | None = None
    for entry in plan.pods:
        name = entry.pod_name(view.job.name)
        if name in plan.kill:
            continue
        if (pod := view.pods.get(name)) is not None:
            steps += _resize(view, entry, pod)
        elif not was_made(view, entry):
            if name in view.foreign:
                again_s = LOOK_AGAIN_S
            else:
                steps.append(MakePod(entry, pods.pod_of(view.job, entry, view.site)))
    overdue = [_overdue_in_s(view, pod) for pod in view.roles.values()]
    return OperatorSteps(steps=tuple(steps), again_s=sooner(again_s, *overdue))


def wanted(view: OperatorView) -> ScalePlan | None:
    """Return the pods that must exist. If the job is over, no pods are wanted. Return None to leave all pods as they
    are."""
    if view.job.over:
        return ScalePlan(job=view.job.name, origin="master")
    return view.plan


def was_made(view: OperatorView, entry: PodWish) -> bool:
    return view.plan_status.made.get(str(entry.life.role), -1) >= entry.incarnation


def _servers(plan: ScalePlan) -> int:
    return sum(entry.role == RoleKind.SERVER for entry in plan.pods)


def _kills(view: OperatorView, plan: ScalePlan) -> list[Step]:
    found = [view.roles[name] for name in plan.kill if name in view.roles]
    return [_delete(pod, 0, "the master ordered its immediate end") for pod in found if not pod_status.ended(pod)]


def _surplus(view: OperatorView, plan: ScalePlan) -> list[Step]:
    steps: list[Step] = []
    listed, killed = set(plan.names), set(plan.kill)
    for name, pod in view.roles.items():
        if name in killed and not pod_status.ended(pod):
            continue
        if pod_status.ending(pod):
            if pod_status.overdue_s(pod, at=view.at) >= OVERDUE_S:
                steps.append(_delete(pod, 0, "its node does not answer"))
        elif name not in listed and not pod_status.ended(pod):
            steps.append(_delete(pod, view.job.job.kubernetes.grace_s, "it is no longer in the plan"))
    return [*steps, *_old_ends(view.roles, listed)]


def _old_ends(roles: Mapping[str, Pod], listed: set[str]) -> list[Step]:
    lives: dict[str, list[tuple[int, str]]] = {}
    for name, pod in roles.items():
        life = names.life_of(pod)
        if life is not None and name not in listed and pod_status.ended(pod) and not pod_status.ending(pod):
            lives.setdefault(str(life.role), []).append((life.incarnation, name))
    old = [name for pods in lives.values() for _, name in sorted(pods)[:-KEPT_LIVES]]
    return [_delete(roles[name], 0, f"it has ended, and {KEPT_LIVES} later pods have ended too") for name in old]


def _leaving(view: OperatorView, plan: ScalePlan) -> list[Step]:
    steps: list[Step] = []
    for name in plan.names:
        pod = view.pods.get(name)
        if pod is None or pod_status.ended(pod) or pod_status.ending(pod) or name in plan.kill:
            continue
        if why := view.doomed.get(pod["spec"].get("nodeName", "")):
            steps.append(EvictPod(name, pod["metadata"]["uid"], why))
    return steps


def _resize(view: OperatorView, entry: PodWish, pod: Pod) -> list[Step]:
    if pod_status.ended(pod) or pod_status.ending(pod):
        return []
    asked = pods.resources_of(view.job, entry)
    if not pod_status.differs(asked, pod) or not view.can_resize:
        return []
    known = view.plan_status.pods.get(entry.pod_name(view.job.name))
    if known is not None and known.resized in SETTLED and view.plan_status.observed_generation == view.plan_generation:
        return []
    return [ResizePod(entry.pod_name(view.job.name), entry.role, pod_status.with_added(asked, pod))]


def _overdue_in_s(view: OperatorView, pod: Pod) -> float | None:
    if not pod_status.ending(pod):
        return None
    return max(1.0, OVERDUE_S - pod_status.overdue_s(pod, at=view.at))


def _delete(pod: Pod, grace_s: int, why: str) -> DeletePod:
    return DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], grace_s, why)


def state_of(view: OperatorView, entry: PodWish) -> PodState:
    name = entry.pod_name(view.job.name)
    pod = view.pods.get(name)
    if pod is None:
        if was_made(view, entry):
            known = view.plan_status.pods.get(name)
            last = f"; last: {known.why}" if known and known.why and known.phase != pod_status.GONE else ""
            why = known.why if known and known.phase == pod_status.GONE else f"somebody has deleted it{last}"
            return PodState(phase=pod_status.GONE, why=why)
        taken = name in view.foreign
        return PodState(phase=pod_status.PENDING, why="a pod of another job has this name" if taken else "not made yet")
    state = pod_status.state_of(pod)
    if not pod_status.differs(pods.resources_of(view.job, entry), pod):
        return state
    known = view.plan_status.pods.get(name)
    resized = "Unsupported" if not view.can_resize else state.resized or (known.resized if known else "")
    return PodState(phase=state.phase, why=state.why, resized=resized)
