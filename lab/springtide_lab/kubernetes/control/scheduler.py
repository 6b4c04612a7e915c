"""Puts pods on nodes through the API, as a cluster's scheduler does: binds, makes room, says why not.

In: pods and nodes, kept fresh by watches (`View`). Out: bindings, evictions of lower priority, the condition
`PodScheduled`. `place` decides: requests, selectors, required affinity, taints, priorities; the emptiest node first.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CLAIMS, NODES, PODS, SERVICES, ObjectKind, key_of
from springtide_lab.kubernetes.api.object_lifecycle import stamp
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.kubelet import pod_lifecycle
from springtide_lab.kubernetes.objects import selectors

OWN_TAINT = "springtide.dev/local-kubelet"
"""Keeps others' pods off a node; the pods of this scheduler are at home there."""
WATCHED = (PODS, SERVICES, NODES)


class Scheduler:
    """One round at a time; `name` is what pods must ask for."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._told: dict[str, str] = {}

    async def round(self, pods: Mapping[tuple[str, str], Json], nodes: Mapping[str, Json]) -> None:
        mine = [pod for pod in pods.values() if self._is_mine(pod)]
        pending = [pod for pod in mine if not pod["spec"].get("nodeName") and not is_leaving(pod)]
        placed = [pod for pod in pods.values() if pod["spec"].get("nodeName") in nodes]
        decided = place(pending, placed, list(nodes.values()))
        for pod, node in decided.bind:
            await self._bind(pod, node)
        for victim, winner in decided.victims:
            await self._preempt(victim, winner)
        for pod, why in decided.nowhere:
            await self._tell(pod, why)

    def _is_mine(self, pod: Json) -> bool:
        return bool(pod["spec"].get("schedulerName") == self._name and not pod["spec"].get("schedulingGates"))

    async def _bind(self, pod: Json, node: str) -> None:
        meta = pod["metadata"]
        if not await self._has_claims(pod):
            return
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.post(PODS, meta["name"], "binding", body, namespace=meta["namespace"])

    async def _has_claims(self, pod: Json) -> bool:
        for volume in pod["spec"].get("volumes") or []:
            if "persistentVolumeClaim" not in volume:
                continue
            name, namespace = volume["persistentVolumeClaim"]["claimName"], pod["metadata"]["namespace"]
            try:
                claim = await self._client.get(CLAIMS, name, namespace=namespace)
            except errors.NotFound:
                await self._tell(pod, f'persistentvolumeclaim "{name}" not found')
                return False
            if claim.get("status", {}).get("phase") != "Bound":
                size = claim["spec"].get("resources", {}).get("requests", {})
                status = {"phase": "Bound", "capacity": size, "accessModes": claim["spec"].get("accessModes", [])}
                await self._client.patch(CLAIMS, name, {"status": status}, namespace=namespace, subresource="status")
        return True

    async def _preempt(self, victim: Json, winner: Json) -> None:
        meta, name = victim["metadata"], self._name
        why = f"{name}: preempting to accommodate a higher priority pod {winner['metadata']['name']}"
        entry = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": why,
            "lastTransitionTime": stamp(time.time()),
        }
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._add_condition(meta, entry)
            await self._client.delete(PODS, meta["name"], namespace=meta["namespace"], uid=meta["uid"])

    async def _add_condition(self, meta: Json, entry: Json) -> None:
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [entry]}}
        namespace = meta["namespace"]
        await self._client.patch(PODS, meta["name"], body, namespace=namespace, subresource="status", how="strategic")

    async def _tell(self, pod: Json, why: str) -> None:
        meta = pod["metadata"]
        if self._told.get(meta["uid"]) == why:
            return
        before = (pod.get("status") or {}).get("conditions") or []
        (entry,) = pod_lifecycle.timed({"PodScheduled": (False, "Unschedulable")}, before, time.time())
        entry["message"] = why
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._add_condition(meta, entry)
            self._told[meta["uid"]] = why


def is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or (pod.get("status") or {}).get("phase") in (
        "Succeeded",
        "Failed",
    )


async def pause_until(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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


class View:
    """Pods and services of some namespaces (none named: all), and all nodes."""

    def __init__(self, client: Client, namespaces: Sequence[str], changed: Callable[[], None]) -> None:
        self._client, self._namespaces, self._changed = client, list(namespaces), changed
        self._things: dict[ObjectKind, dict[tuple[str, str], Json]] = {kind: {} for kind in WATCHED}
        self._synced: dict[tuple[ObjectKind, str], asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pods(self) -> dict[tuple[str, str], Json]:
        return self._things[PODS]

    @property
    def services(self) -> dict[tuple[str, str], Json]:
        return self._things[SERVICES]

    @property
    def nodes(self) -> dict[tuple[str, str], Json]:
        return self._things[NODES]

    async def start(self) -> None:
        for kind in WATCHED:
            for namespace in self._namespaces if kind.namespaced and self._namespaces else [""]:
                self._synced[kind, namespace] = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(kind, namespace)))
        synced = asyncio.create_task(self._all_synced())
        await asyncio.wait([synced, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    async def _all_synced(self) -> None:
        for event in self._synced.values():
            await event.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, kind: ObjectKind, namespace: str) -> None:
        things = self._things[kind]
        async for change in self._client.watch(kind, namespace=namespace, everywhere=not namespace):
            if change.what == "synced":
                self._synced[kind, namespace].set()
            elif change.what == "gone":
                things.pop(key_of(change.thing), None)
            else:
                things[key_of(change.thing)] = change.thing
            self._changed()
