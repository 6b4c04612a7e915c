"""Schedule pods on nodes through the API, as a cluster's scheduler does: bind them, or report why not.

In: pods and nodes, updated by watches (`View`). Out: bindings, the condition `PodScheduled`. `place` decides by
requests, node selectors and taints, and prefers the emptiest node.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CLAIMS, NODES, PODS, SERVICES, ObjectKind, key_of, parse_quantity
from springtide.platforms.k8s.operator.job_view import tolerates
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control.reconcile import is_over
from springtide_lab.kubernetes.kubelet import pod_lifecycle

OWN_TAINT = "springtide.dev/local-kubelet"
"""Taint that keeps pods of other schedulers off a node. Pods of this scheduler tolerate the taint."""
WATCHED = (PODS, SERVICES, NODES)


class Scheduler:
    """Scheduler that runs one round at a time. A pod chooses this scheduler by its `schedulerName`."""

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

    async def _tell(self, pod: Json, why: str) -> None:
        meta = pod["metadata"]
        if self._told.get(meta["uid"]) == why:
            return
        before = (pod.get("status") or {}).get("conditions") or []
        (entry,) = pod_lifecycle.timed({"PodScheduled": (False, "Unschedulable")}, before, time.time())
        entry["message"] = why
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [entry]}}
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.patch(
                PODS, meta["name"], body, namespace=meta["namespace"], subresource="status", how="strategic"
            )
            self._told[meta["uid"]] = why


def is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or is_over(pod)


@dataclass(slots=True)
class Round:
    """Decisions of one round: pods to bind with their nodes, and unschedulable pods with the reasons."""

    bind: list[tuple[Json, str]] = field(default_factory=list)
    nowhere: list[tuple[Json, str]] = field(default_factory=list)


def requests(pod: Json) -> dict[str, float]:
    total: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0.0) + parse_quantity(amount)
    return total


def place(pending: Iterable[Json], placed: Sequence[Json], nodes: Sequence[Json]) -> Round:
    """Decide about all pending pods, starting with the pod that has waited longest."""
    result = Round()
    on: dict[str, list[Json]] = {node["metadata"]["name"]: [] for node in nodes}
    for pod in placed:
        if not is_over(pod):
            on.setdefault(pod["spec"]["nodeName"], []).append(pod)
    for pod in sorted(pending, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])):
        why_not: dict[str, int] = {}
        fitting = []
        for node in nodes:
            why = obstacle(pod, node, on[node["metadata"]["name"]])
            if why:
                why_not[why] = why_not.get(why, 0) + 1
            else:
                fitting.append(node)
        if fitting:
            _, best = min((-_free(node, on[node["metadata"]["name"]]), node["metadata"]["name"]) for node in fitting)
            result.bind.append((pod, best))
            on[best].append(pod)
            continue
        told = ", ".join(f"{count} {why}" for why, count in sorted(why_not.items())) or "no nodes available"
        result.nowhere.append((pod, f"0/{len(nodes)} nodes are available: {told}."))
    return result


def obstacle(pod: Json, node: Json, others: Sequence[Json]) -> str:
    """Return why a pod cannot run on a node; empty if it can."""
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    tolerations = [{"key": OWN_TAINT, "operator": "Exists"}, *(pod["spec"].get("tolerations") or [])]
    for taint in node["spec"].get("taints") or []:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    room = node["status"].get("allocatable") or {}
    for name, amount in requests(pod).items():
        used = sum(requests(other).get(name, 0.0) for other in others)
        if used + amount > parse_quantity(room.get(name, "0")) + 1e-9:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def _free(node: Json, others: Sequence[Json]) -> float:
    """Return the free share of a node's scarcest resource."""
    shares = []
    for name in ("cpu", "memory", "pods"):
        room = parse_quantity((node["status"].get("allocatable") or {}).get(name, "0"))
        used = sum(requests(other).get(name, 0.0) for other in others)
        shares.append(1.0 - used / room if room else 0.0)
    return round(min(shares), 6)


class View:
    """All nodes, and the pods and services of some namespaces (of all if none is given), updated by watches."""

    def __init__(self, client: Client, namespaces: Sequence[str], changed: Callable[[], None]) -> None:
        self._client, self._namespaces, self._changed = client, list(namespaces), changed
        things: list[dict[tuple[str, str], Json]] = [{} for _ in WATCHED]
        self.pods, self.services, self.nodes = things
        self._things = dict(zip(WATCHED, things, strict=True))
        self._synced: dict[tuple[ObjectKind, str], asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for kind in WATCHED:
            for namespace in self._namespaces if kind.namespaced and self._namespaces else [""]:
                self._synced[kind, namespace] = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(kind, namespace)))
        synced: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in self._synced.values()))
        waits: list[asyncio.Future[Any]] = [synced, *self._tasks]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

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
