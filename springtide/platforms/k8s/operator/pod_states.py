"""Pure. Describes the state of a pod in one word, with a reason that a person can act on.

In: pods from the API. Out: `PodState`s for the status of a plan, and problems of a master's pod for the status of the
job.
"""

import datetime
from collections.abc import Mapping
from typing import Any

from springtide.domain.plan.scale_plan import PodState
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.objects import names

Pod = Mapping[str, Any]

PENDING, RUNNING, ENDING, SUCCEEDED, FAILED, GONE, REFUSED = (
    "Pending",
    "Running",
    "Ending",
    "Succeeded",
    "Failed",
    "Gone",
    "Refused",
)
PARTS = ("requests", "limits")
"""Parts of a container's resources."""


def ended(pod: Pod) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ending(pod: Pod) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def overdue_s(pod: Pod, *, at: float) -> float:
    return at - seconds(pod["metadata"]["deletionTimestamp"])


def state_of(pod: Pod) -> PodState:
    phase = str(pod.get("status", {}).get("phase") or PENDING)
    if ending(pod) and not ended(pod):
        return PodState(phase=ENDING, why=why_ending(pod), resized=resize_of(pod))
    known = phase if phase in (RUNNING, SUCCEEDED, FAILED) else PENDING
    return PodState(phase=known, why=why(pod), resized=resize_of(pod))


def reason(pod: Pod) -> str:
    """Return one word such as Unschedulable, ImagePullBackOff or OOMKilled; empty for a healthy pod."""
    return _trouble(pod)[0]


def why(pod: Pod) -> str:
    word, words = _trouble(pod)
    return f"{word}: {words}" if word and words else word or words


def _trouble(pod: Pod) -> tuple[str, str]:
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Failed":
        if status.get("reason"):
            return str(status["reason"]), str(status.get("message") or "")
        return _failed_container(status)
    for each in _containers(status):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            return str(waiting["reason"]), _last(each) or str(waiting.get("message") or "")
    if phase in (None, "Pending"):
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message") or "")
    if condition(pod, "DisruptionTarget").get("status") == "True":
        said = condition(pod, "DisruptionTarget")
        return str(said.get("reason") or "DisruptionTarget"), str(said.get("message") or "")
    return "", ""


def _failed_container(status: Mapping[str, Any]) -> tuple[str, str]:
    for each in _containers(status):
        if done := (each.get("state") or {}).get("terminated"):
            return _end(done)
    return "Failed", str(status.get("message") or "")


def _last(container: Mapping[str, Any]) -> str:
    done = (container.get("lastState") or {}).get("terminated")
    return " ".join(part for part in _end(done) if part) if done else ""


def _end(done: Mapping[str, Any]) -> tuple[str, str]:
    word = str(done.get("reason") or "Error")
    lines = str(done.get("message") or "").strip().splitlines()
    return word, f"exit status {done.get('exitCode')}" + (f", last line: {lines[-1][:200]}" if lines else "")


def why_ending(pod: Pod) -> str:
    said = condition(pod, "DisruptionTarget")
    return f"{said.get('reason')}: {said.get('message')}" if said.get("status") == "True" else ""


def resize_of(pod: Pod) -> str:
    """Return the state of a resize: from conditions since Kubernetes 1.33, from a status field before."""
    status = pod.get("status") or {}
    pending = condition(pod, "PodResizePending")
    if pending.get("status") == "True":
        return str(pending.get("reason") or "Deferred")
    if condition(pod, "PodResizeInProgress").get("status") == "True":
        return "InProgress"
    return str(status.get("resize") or "")


def differs(wanted: Mapping[str, Any], pod: Pod) -> bool:
    """Return True if resources differ by amount. Ignore resources that a LimitRange or webhook has added."""
    has = _resources(pod)
    return any(
        name not in has.get(part, {}) or kinds.parse_quantity(value) != kinds.parse_quantity(has[part][name])
        for part in PARTS
        for name, value in (wanted.get(part) or {}).items()
    )


def with_added(wanted: Mapping[str, Any], pod: Pod) -> dict[str, Any]:
    """Merge wanted resources with those that a LimitRange or webhook has added."""
    has = _resources(pod)
    joined = {part: {**has.get(part, {}), **(wanted.get(part) or {})} for part in PARTS}
    return {part: amounts for part, amounts in joined.items() if amounts}


def _resources(pod: Pod) -> Mapping[str, Any]:
    containers, name = pod["spec"]["containers"], names.container_of(pod)
    return next((each for each in containers if each.get("name") == name), containers[0]).get("resources") or {}


def condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    return next((each for each in pod.get("status", {}).get("conditions") or [] if each.get("type") == kind), {})


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def stamp(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
