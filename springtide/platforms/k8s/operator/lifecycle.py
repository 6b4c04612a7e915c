"""Pure. Decides the life cycle of a job: its master's pod, an early stop, and its deletion after `keepS` seconds.

In: an `OperatorView`. Out: steps, and the condition `MasterRunning`. The kubelet restarts a failed container in
place. The operator replaces a lost pod. If masters die early, the operator waits longer each time.
"""

from dataclasses import dataclass, field

from springtide.domain.plan.scale_plan import PodWish
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names, pod_status, pods
from springtide.platforms.k8s.objects.job_objects import PENDING, JobCondition
from springtide.platforms.k8s.operator.job_view import OperatorView

PAUSES_S = (0.0, 0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds to wait before the next master, by the number of short-lived masters in a row. After the first loss there
is no delay.
"""
LASTED_S = 600.0
OVERDUE_S = 30.0
"""Seconds after which the operator ignores a pod that should be gone but whose node does not respond. A master in such
a pod is harmless, because the master no longer has the Lease and the newest term.
"""
LOOK_AGAIN_S = 2.0
RUNNING = "MasterRunning"


@dataclass(frozen=True, slots=True)
class MakeMaster:
    """Step: create the objects that a master's pod needs, and the pod."""

    pod: Object
    number: int
    in_a_row: int


@dataclass(frozen=True, slots=True)
class MakePod:
    """Step: create the pod of a role."""

    entry: PodWish
    pod: Object


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Step: delete a pod, within its grace period or immediately."""

    name: str
    uid: str
    grace_s: int | None
    why: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Step: request the eviction of a pod, which respects the servers' disruption budget and drains the pod."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Step: change the resources of a running pod."""

    name: str
    container: str
    resources: Object = field(hash=False)


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Step: adapt the disruption budget to the number of servers."""

    servers: int


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Step: delete a finished job whose retention time is over."""

    why: str


Step = MakeMaster | MakePod | DeletePod | EvictPod | ResizePod | SetBudget | DeleteJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSteps:
    """Steps to take now, and when to visit the job again if nothing changes before that."""

    steps: tuple[Step, ...] = ()
    again_s: float | None = None


def decide_master(view: OperatorView) -> OperatorSteps:
    pod = view.master
    if pod is None:
        return _make(view)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    if pod_status.ended(pod):
        gone = DeletePod(name, uid, 0, f"the pod ended before the job: {pod_status.why(pod) or 'no reason given'}")
        return OperatorSteps(steps=(gone,), again_s=LOOK_AGAIN_S)
    if pod_status.ending(pod):
        overdue_s = pod_status.overdue_s(pod, at=view.at)
        if overdue_s >= OVERDUE_S:
            return OperatorSteps(steps=(DeletePod(name, uid, 0, "its node does not answer"),), again_s=LOOK_AGAIN_S)
        return OperatorSteps(again_s=max(1.0, OVERDUE_S - overdue_s))
    return OperatorSteps()


def _make(view: OperatorView) -> OperatorSteps:
    if names.master(view.job.name) in view.foreign:
        return OperatorSteps(again_s=LOOK_AGAIN_S)
    wait_s = pause_s(view)
    if wait_s > 0:
        return OperatorSteps(again_s=wait_s)
    number = int(view.job.status.get("masters") or 0) + 1
    pod = pods.master_pod(view.job, view.site, number=number)
    return OperatorSteps(steps=(MakeMaster(pod, number, in_a_row(view) + (number > 1)),))


def in_a_row(view: OperatorView) -> int:
    made_at = view.job.status.get("masterMadeAt")
    if not made_at or view.at - kinds.seconds(made_at) >= LASTED_S:
        return 0
    return int(view.job.status.get("mastersInARow") or 0)


def pause_s(view: OperatorView) -> float:
    made_at = view.job.status.get("masterMadeAt")
    if not made_at:
        return 0.0
    since_s = view.at - kinds.seconds(made_at)
    row = in_a_row(view) + 1
    return max(0.0, PAUSES_S[min(row, len(PAUSES_S) - 1)] - since_s)


def master_condition(view: OperatorView, made: bool, refused: str) -> JobCondition:
    pod = view.master
    if refused:
        return JobCondition(RUNNING, False, "Refused", f"no master: {refused}")
    if made:
        return JobCondition(RUNNING, False, "Made", "the master's pod was made")
    if pod is None:
        return _absent(view)
    if pod_status.ending(pod) or pod_status.ended(pod):
        why = pod_status.why(pod)
        return JobCondition(RUNNING, False, "Lost", f"the master's pod is ending; {why}".rstrip("; "))
    if pod_status.state_of(pod).phase == pod_status.RUNNING and not pod_status.trouble(pod)[0]:
        return JobCondition(RUNNING, True, "Running", "")
    reason = pod_status.trouble(pod)[0] or "Pending"
    what = pod_status.why(pod) or "waits for a node, or for its image"
    return JobCondition(RUNNING, False, reason, f"the master's pod: {what}")


def _absent(view: OperatorView) -> JobCondition:
    if names.master(view.job.name) in view.foreign:
        reason = f"a pod {names.master(view.job.name)} of another job of this name is still there"
        return JobCondition(RUNNING, False, "NameTaken", reason)
    due = kinds.timestamp(view.at + pause_s(view))
    reason = f"the master's pod is created again at {due}, because {in_a_row(view) + 1} in a row ended early"
    return JobCondition(RUNNING, False, "Waiting", reason)


def decide_over(view: OperatorView) -> OperatorSteps:
    keep_s, ended_at = view.job.job.kubernetes.keep_s, view.job.status.get("endedAt")
    if keep_s is None or not ended_at:
        return OperatorSteps()
    left_s = kinds.seconds(ended_at) + keep_s - view.at
    if left_s > 0:
        return OperatorSteps(again_s=left_s)
    return OperatorSteps(steps=(DeleteJob(f"the job ended at {ended_at}, and was kept for {keep_s} s"),))


def stopped_early(view: OperatorView) -> bool:
    if not view.job.job.stopped or view.job.phase not in ("", PENDING):
        return False
    return view.master is None or pod_status.state_of(view.master).phase != pod_status.RUNNING


def left_alone_s(view: OperatorView) -> float | None:
    """Return the seconds until the operator itself ends a job that the user has stopped, because its master does not
    return. None means never. A master that restarts in time drains the job itself.
    """
    job = view.job
    if not job.job.stopped or job.over or job.phase in ("", PENDING):
        return None
    condition = kinds.condition({"status": job.status}, RUNNING)
    if condition.get("status") != "False":
        return None
    since_s = view.at - kinds.seconds(condition["lastTransitionTime"])
    return max(0.0, job.job.kubernetes.pending_s - since_s)


def decide_stopped(view: OperatorView) -> OperatorSteps:
    pod = view.master
    steps: tuple[Step, ...] = ()
    if pod is not None and not pod_status.ending(pod):
        steps = (DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], 0, "the job was stopped"),)
    return OperatorSteps(steps=steps)


def sooner(*times: float | None) -> float | None:
    known = [time for time in times if time is not None]
    return min(known) if known else None
