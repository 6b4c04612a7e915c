"""Derives the state of a role's process from its pod's status: exited, evicted, or not started.

In: pods from the API, watched by `platforms.k8s.job.platform`. Out: a `RoleExit`, or an explanation for people.
"""

import signal
from collections.abc import Mapping
from typing import Any

from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names
from springtide.telemetry import logs

TAKEN = frozenset(
    {
        "Evicted",
        "Preempting",
        "Preempted",
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "NodeAffinity",
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "DeadlineExceeded",
    }
)
"""Reasons in a pod's status that mean an eviction by the cluster."""
KILLED = 137
"""Exit status after SIGKILL. In a pod with a memory limit the sender is usually the kernel, whatever the
reason says.
"""
LAST_WORDS = 300


def ended(pod: Object) -> bool:
    """True if our container has ended for good; injected sidecars may run on."""
    over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return over or (pod.get("spec", {}).get("restartPolicy") == "Never" and bool(_terminated(pod)))


def going(pod: Object) -> str:
    """Return why the cluster evicts a running pod; empty if it does not."""
    if "deletionTimestamp" in pod.get("metadata", {}):
        return "it is being deleted"
    told = _condition(pod, "DisruptionTarget")
    if told.get("status") == "True":
        return str(told.get("message") or told.get("reason") or "the cluster takes it away")
    return ""


def exit_of(pod: Object, life: Life, *, asked: bool, present: bool = True) -> RoleExit:
    """Return how the process ended.

    `asked`: we deleted the pod, otherwise a deletion is an eviction. `present`: the pod still exists; one that vanished
    was evicted, or its node was lost.
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
        role=life.role,
        incarnation=life.incarnation,
        pid=0,
        code=None if name else code,
        signal=name,
        oom=oom,
        evicted=evicted or (code is None and not asked),
        error=logs.error_in(_said(pod)) if raised else "",
    )


def why_absent(pod: Object | None, told: str = "") -> str:
    """Explain why a pod does not run, as the cluster reports it; `told` is the operator's message."""
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
    return "running" in _state(pod) or ended(pod)


def last_words(pod: Object) -> str:
    return _said(pod).strip()[-LAST_WORDS:]


def _said(pod: Object) -> str:
    """Return the last 2 KiB of the container's log, from `FallbackToLogsOnError`."""
    return str(_terminated(pod).get("message") or "")


def _state(pod: Object) -> Mapping[str, Any]:
    found, name = pod.get("status", {}).get("containerStatuses") or [{}], names.container_of(pod)
    return next((each for each in found if each.get("name") == name), found[0]).get("state") or {}


def _terminated(pod: Object) -> Mapping[str, Any]:
    return _state(pod).get("terminated") or {}


def _condition(pod: Object, kind: str) -> Mapping[str, Any]:
    return next((each for each in pod.get("status", {}).get("conditions") or [] if each.get("type") == kind), {})


def _signal(code: int | None) -> str:
    if code is None or code <= 128:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""
