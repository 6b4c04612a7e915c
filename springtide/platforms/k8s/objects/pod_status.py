"""Pure. Reads the status of a pod: its state in one word, a reason for people, and whether its process runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from springtide.domain.plan.scale_plan import PodState
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.objects import names

Pod = Mapping[str, Any]

PENDING, RUNNING, ENDING, GONE, REFUSED = "Pending", "Running", "Ending", "Gone", "Refused"
SUCCEEDED, FAILED = "Succeeded", "Failed"
PARTS = ("requests", "limits")

LAST_WORDS = 300


def ended(pod: Pod) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ending(pod: Pod) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def overdue_s(pod: Pod, *, at: float) -> float:
    return at - kinds.seconds(pod["metadata"]["deletionTimestamp"])


def state_of(pod: Pod) -> PodState:
    phase = str(pod.get("status", {}).get("phase") or PENDING)
    if ending(pod) and not ended(pod):
        return PodState(phase=ENDING, why=": ".join(filter(None, disruption(pod))), resized=resize_of(pod))
    known = phase if phase in (RUNNING, SUCCEEDED, FAILED) else PENDING
    return PodState(phase=known, why=why(pod), resized=resize_of(pod))


def why(pod: Pod) -> str:
    return ": ".join(filter(None, trouble(pod)))


def trouble(pod: Pod) -> tuple[str, str]:
    """Return one word such as Unschedulable, ImagePullBackOff or OOMKilled, and an explanation; return empty strings
    for a healthy pod.
    """
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Failed":
        if status.get("reason"):
            return str(status["reason"]), str(status.get("message") or "")
        states = [(container.get("state") or {}).get("terminated") for container in _containers(status)]
        return next((_end(done) for done in states if done), ("Failed", str(status.get("message") or "")))
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            return str(waiting["reason"]), _last(container) or str(waiting.get("message") or "")
    if phase in (None, "Pending"):
        scheduled = kinds.condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message") or "")
    return disruption(pod)


def disruption(pod: Pod) -> tuple[str, str]:
    """Return why the cluster is about to evict a pod, as one word and an explanation; empty if the cluster will not
    evict it."""
    target = kinds.condition(pod, "DisruptionTarget")
    if target.get("status") != "True":
        return "", ""
    return str(target.get("reason") or "DisruptionTarget"), str(target.get("message") or "")


def _last(container: Mapping[str, Any]) -> str:
    done = (container.get("lastState") or {}).get("terminated")
    return " ".join(part for part in _end(done) if part) if done else ""


def _end(done: Mapping[str, Any]) -> tuple[str, str]:
    word = str(done.get("reason") or "Error")
    lines = str(done.get("message") or "").strip().splitlines()
    return word, f"exit status {done.get('exitCode')}" + (f", last line: {lines[-1][:200]}" if lines else "")


def resize_of(pod: Pod) -> str:
    """Return the state of a resize. Kubernetes reports the state of a resize in conditions since version 1.33, and in a
    status field before that version.
    """
    status = pod.get("status") or {}
    pending = kinds.condition(pod, "PodResizePending")
    if pending.get("status") == "True":
        return str(pending.get("reason") or "Deferred")
    if kinds.condition(pod, "PodResizeInProgress").get("status") == "True":
        return "InProgress"
    return str(status.get("resize") or "")


def differs(wanted: Mapping[str, Any], pod: Pod) -> bool:
    """Return True if the amount of a wanted resource differs. Ignore resources that a LimitRange or webhook has
    added."""
    has = _resources(pod)
    return any(
        name not in has.get(part, {}) or kinds.parse_quantity(value) != kinds.parse_quantity(has[part][name])
        for part in PARTS
        for name, value in (wanted.get(part) or {}).items()
    )


def with_added(wanted: Mapping[str, Any], pod: Pod) -> dict[str, Any]:
    has = _resources(pod)
    joined = {part: {**has.get(part, {}), **(wanted.get(part) or {})} for part in PARTS}
    return {part: amounts for part, amounts in joined.items() if amounts}


def _resources(pod: Pod) -> Mapping[str, Any]:
    return _own(pod["spec"]["containers"], pod).get("resources") or {}


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def process_ended(pod: Pod) -> bool:
    """Return True if the role's container has ended permanently. Injected sidecars may still run."""
    return ended(pod) or (pod.get("spec", {}).get("restartPolicy") == "Never" and bool(terminated(pod)))


def why_evicted(pod: Pod) -> str:
    if "deletionTimestamp" in pod.get("metadata", {}):
        return "it is being deleted"
    reason, message = disruption(pod)
    return message or reason


def why_absent(pod: Pod | None, reported: str = "") -> str:
    """Explain why a pod does not run, as the cluster reports it. `reported` is the operator's message."""
    if pod is None:
        return reported or "no pod was made for this role; check that the operator runs (`springtide k8s status`)"
    if found := why(pod):
        return found
    if not pod.get("spec", {}).get("nodeName"):
        return "no scheduler has handled it"
    return str(pod.get("status", {}).get("message") or "its node does not start it")


def process_started(pod: Pod) -> bool:
    return "running" in _state(pod) or process_ended(pod)


def last_words(pod: Pod) -> str:
    return last_message(pod).strip()[-LAST_WORDS:]


def last_message(pod: Pod) -> str:
    return str(terminated(pod).get("message") or "")


def _own(parts: Sequence[Mapping[str, Any]], pod: Pod) -> Mapping[str, Any]:
    """Return the status of the role's own container, because sidecars may come before it in the list."""
    name = names.container_of(pod)
    return next((part for part in parts if part.get("name") == name), parts[0])


def _state(pod: Pod) -> Mapping[str, Any]:
    return _own(pod.get("status", {}).get("containerStatuses") or [{}], pod).get("state") or {}


def terminated(pod: Pod) -> Mapping[str, Any]:
    return _state(pod).get("terminated") or {}
