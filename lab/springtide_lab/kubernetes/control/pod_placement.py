"""Pure. Which pod goes to which node, who must make room, and why a pod goes nowhere.

In: nodes and pods as they are. Out: bindings, victims and complaints. As the scheduler of a cluster does it, as far as
jobs can tell: requests, selectors, required node affinity, taints, priorities; the emptiest node first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import selectors

OWN_TAINT = "springtide.dev/local-kubelet"
"""Keeps others' pods off a node; the pods of this scheduler are at home there."""


@dataclass(slots=True)
class Round:
    """What to do now."""

    bind: list[tuple[Json, str]] = field(default_factory=list)
    victims: list[tuple[Json, Json]] = field(default_factory=list)
    """Who must go, and for whom."""
    nowhere: list[tuple[Json, str]] = field(default_factory=list)


def requests(pod: Json) -> dict[str, float]:
    """What a pod asks for; init containers run alone."""
    total: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"].get("containers") or []:
        for name, amount in _asked(container).items():
            total[name] = total.get(name, 0.0) + amount
    for container in pod["spec"].get("initContainers") or []:
        for name, amount in _asked(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    return total


def _asked(container: Json) -> dict[str, float]:
    found = (container.get("resources") or {}).get("requests") or {}
    return {name: selectors.number(amount) for name, amount in found.items()}


def place(pending: Iterable[Json], placed: Sequence[Json], nodes: Sequence[Json]) -> Round:
    """One round: pods of high priority first, then those that have waited longest."""
    result = Round()
    living = [pod for pod in placed if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    on: dict[str, list[Json]] = {node["metadata"]["name"]: [] for node in nodes}
    for pod in living:
        on.setdefault(pod["spec"]["nodeName"], []).append(pod)
    order = sorted(pending, key=lambda pod: (-_priority(pod), pod["metadata"]["creationTimestamp"], _name(pod)))
    for pod in order:
        why_not: dict[str, int] = {}
        fitting = []
        for node in nodes:
            why = obstacle(pod, node, on[node["metadata"]["name"]])
            if why:
                why_not[why] = why_not.get(why, 0) + 1
            else:
                fitting.append(node)
        if fitting:
            best = max(fitting, key=lambda node: (_free(node, on[node["metadata"]["name"]]), _reversed(node)))
            result.bind.append((pod, best["metadata"]["name"]))
            on[best["metadata"]["name"]].append(pod)
            continue
        told = ", ".join(f"{count} {why}" for why, count in sorted(why_not.items())) or "no nodes available"
        result.nowhere.append((pod, f"0/{len(nodes)} nodes are available: {told}."))
        for victim in make_room(pod, nodes, on):
            result.victims.append((victim, pod))
            on[victim["spec"]["nodeName"]].remove(victim)
    return result


def obstacle(pod: Json, node: Json, others: Sequence[Json], *, sizes: bool = True) -> str:
    """Why a pod cannot go to a node; empty: it can."""
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] != OWN_TAINT and not tolerated(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    if not _affine(pod, labels):
        return "node(s) didn't match Pod's node affinity/selector"
    if not sizes:
        return ""
    room = node["status"].get("allocatable") or {}
    for name, amount in requests(pod).items():
        used = sum(requests(other).get(name, 0.0) for other in others)
        if used + amount > selectors.number(room.get(name, "0")) + 1e-9:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def tolerated(pod: Json, taint: Mapping[str, str]) -> bool:
    for each in pod["spec"].get("tolerations") or []:
        if each.get("effect") and each["effect"] != taint["effect"]:
            continue
        if each.get("operator", "Equal") == "Exists":
            if not each.get("key") or each["key"] == taint["key"]:
                return True
        elif each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", ""):
            return True
    return False


def _affine(pod: Json, labels: Mapping[str, str]) -> bool:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if not terms:
        return True
    return any(all(selectors.meets(rule, labels) for rule in term.get("matchExpressions") or []) for term in terms)


def make_room(pod: Json, nodes: Sequence[Json], on: Mapping[str, Sequence[Json]]) -> list[Json]:
    """The fewest pods of lower priority that must go; none where that helps nowhere, or where some go already."""
    if pod["spec"].get("preemptionPolicy") == "Never":
        return []
    best: list[Json] | None = None
    for node in nodes:
        if obstacle(pod, node, [], sizes=False):
            continue
        others = list(on[node["metadata"]["name"]])
        lower = sorted((each for each in others if _priority(each) < _priority(pod)), key=_priority)
        if any(each["metadata"].get("deletionTimestamp") for each in lower):
            return []
        victims: list[Json] = []
        while lower and obstacle(pod, node, others):
            victims.append(lower.pop(0))
            others.remove(victims[-1])
        if not obstacle(pod, node, others) and (best is None or len(victims) < len(best)):
            best = victims
    return best or []


def _priority(pod: Json) -> int:
    return int(pod["spec"].get("priority") or 0)


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _reversed(node: Json) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in node["metadata"]["name"])


def _free(node: Json, others: Sequence[Json]) -> float:
    """The share of a node that is left, by what is scarcest on it."""
    shares = []
    for name in ("cpu", "memory", "pods"):
        room = selectors.number((node["status"].get("allocatable") or {}).get(name, "0"))
        used = sum(requests(other).get(name, 0.0) for other in others)
        shares.append(1.0 - used / room if room else 0.0)
    return round(min(shares), 6)
