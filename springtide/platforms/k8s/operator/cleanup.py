"""Pure. When a job that has ended goes: `spec.kubernetes.keepS` seconds after its end, or never.

In: an `OperatorView` of a job that is over, or was stopped before it began. Out: steps.
"""

from springtide.platforms.k8s.objects.job_object import PENDING, condition
from springtide.platforms.k8s.operator import master_pod, pod_states
from springtide.platforms.k8s.operator.job_view import OperatorView
from springtide.platforms.k8s.operator.steps import DeleteJob, DeletePod, OperatorSteps, Step


def decide(view: OperatorView) -> OperatorSteps:
    """For a job that is over."""
    keep_s, ended_at = view.job.job.kubernetes.keep_s, view.job.status.get("endedAt")
    if keep_s is None or not ended_at:
        return OperatorSteps()
    left_s = pod_states.seconds(ended_at) + keep_s - view.at
    if left_s > 0:
        return OperatorSteps(again_s=left_s)
    return OperatorSteps(steps=(DeleteJob(f"it ended at {ended_at}, and was to be kept for {keep_s} s"),))


def stopped_early(view: OperatorView) -> bool:
    """Whether somebody stops a job whose master does not run yet, so that nobody else can heed it."""
    if not view.job.job.stopped or view.job.phase not in ("", PENDING):
        return False
    return view.master is None or pod_states.state_of(view.master).phase != pod_states.RUNNING


def left_alone_s(view: OperatorView) -> float | None:
    """Seconds until a job that was stopped is ended without its master, which does not come back; None: never.

    One that is only started again drains the job itself, so it has as long as any pod has to find a node.
    """
    job = view.job
    if not job.job.stopped or job.over or job.phase in ("", PENDING):
        return None
    said = condition(job.status, master_pod.RUNNING)
    if said.get("status") != "False":
        return None
    since_s = view.at - pod_states.seconds(said["lastTransitionTime"])
    return max(0.0, job.job.kubernetes.pending_s - since_s)


def of_stopped(view: OperatorView) -> OperatorSteps:
    """Its master's pod need not come."""
    pod = view.master
    steps: tuple[Step, ...] = ()
    if pod is not None and not pod_states.ending(pod):
        steps = (DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"], 0, "the job was stopped"),)
    return OperatorSteps(steps=steps)
