"""What a pod's status says of the process in it: that it ended and how, that it is to go, why it is not there.

In: pods as the API has them, watched by `platforms.k8s.job.platform`. Out: `RoleExit`, or words for people.
"""

import signal
from collections.abc import Mapping
from typing import Any

from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names
from springtide.telemetry import logs

TAKEN = frozenset(
    {"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity",
     "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "DeadlineExceeded"}
)  # fmt: skip
"""Reasons of a pod's status by which the cluster says that it took it away."""
KILLED = 137
"""Exit status of what SIGKILL ended: inside of a memory limit as a rule by the kernel, whatever the reason says."""
LAST_WORDS = 300


def ended(pod: Object) -> bool:
    """Whether our process in it runs no more, and will not; somebody's container beside it may run for ever."""
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return over or (pod.get("spec", {}).get("restartPolicy") == "Never" and bool(_terminated(pod)))


def going(pod: Object) -> str:
    """Why the cluster takes it away, while it still runs; empty: it does not."""
    if "deletionTimestamp" in pod.get("metadata", {}):
        return "it is being deleted"
    told = _condition(pod, "DisruptionTarget")
    if told.get("status") == "True":
        return str(told.get("message") or told.get("reason") or "the cluster takes it away")
    return ""


def exit_of(pod: Object, life: Life, *, asked: bool, present: bool = True) -> RoleExit:
    """How its process ended. `asked`: we wanted it to; otherwise whoever deletes a pod evicts it.

    `present`: the pod is still there; what is gone without a word was taken by the cluster, or its node was lost.
    """
    status = pod.get("status", {})
    code = _terminated(pod).get("exitCode")
    taken = status.get("reason") in TAKEN or _condition(pod, "DisruptionTarget").get("status") == "True"
    deleted = "deletionTimestamp" in pod.get("metadata", {}) or not present
    evicted = not asked and (taken or deleted)
    name = _signal(code)
    reason = _terminated(pod).get("reason")
    oom = not evicted and not asked and (reason == "OOMKilled" or code == KILLED)
    if code is None:
        name = "SIGKILL" if asked else ""
    raised = bool(code) and not name and life.role.kind is not RoleKind.WORKER
    return RoleExit(
        role=life.role, incarnation=life.incarnation, pid=0, code=None if name else code, signal=name, oom=oom,
        evicted=evicted or (code is None and not asked), error=logs.error_in(_said(pod)) if raised else "",
    )  # fmt: skip


def why_absent(pod: Object | None, told: str = "") -> str:
    """Why a pod that must be there does not run, in the cluster's own words; `told`: what the operator says of it."""
    if pod is None:
        return told or "no pod was made for it: does the operator run? (`springtide k8s status`)"
    waiting = _state(pod).get("waiting") or {}
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "no node takes it")
    if waiting:
        words = ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
        return words or "its container does not start"
    if not pod.get("spec", {}).get("nodeName"):
        return "no scheduler has looked at it"
    return str(pod.get("status", {}).get("message") or "its node does not start it")


def here(pod: Object) -> bool:
    """Whether its process has been started."""
    return "running" in _state(pod) or ended(pod)


def last_words(pod: Object) -> str:
    """The end of what it has printed, where the cluster keeps that."""
    return _said(pod).strip()[-LAST_WORDS:]


def _said(pod: Object) -> str:
    """The end of its log, 2 KiB at most: a kubelet puts it there (`FallbackToLogsOnError` in `pods`)."""
    return str(_terminated(pod).get("message") or "")


def _state(pod: Object) -> Mapping[str, Any]:
    """Of our container: waiting, running or terminated."""
    found, name = pod.get("status", {}).get("containerStatuses") or [{}], names.container_of(pod)
    return next((each for each in found if each.get("name") == name), found[0]).get("state") or {}


def _terminated(pod: Object) -> Mapping[str, Any]:
    return _state(pod).get("terminated") or {}


def _condition(pod: Object, kind: str) -> Mapping[str, Any]:
    return next((each for each in pod.get("status", {}).get("conditions") or [] if each.get("type") == kind), {})


def _signal(code: int | None) -> str:
    """Shells and container runtimes write a signal as 128 and its number."""
    if code is None or code <= 128:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""
