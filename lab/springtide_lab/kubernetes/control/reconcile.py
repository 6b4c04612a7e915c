"""What a cluster's controller manager does: `decide` (pure) says what, `Housekeeping` does it in our API server.

An account and the server's certificate in every namespace; owned objects go with their owner; a deleted namespace is
emptied and ends; budgets count; claims and pods of lost nodes go.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from springtide.platforms.k8s.api.kinds import ObjectKind, condition
from springtide_lab.kubernetes.api.object_lifecycle import Lifecycle
from springtide_lab.kubernetes.api.object_store import Change, Key
from springtide_lab.kubernetes.api.paths import Registry
from springtide_lab.kubernetes.api.status_errors import Json, Refused
from springtide_lab.kubernetes.objects import kinds, selectors

IN_USE = "kubernetes.io/pvc-protection"


AnyKind = kinds.Kind | ObjectKind
"""A kind of our API server or of the client."""
Found = Sequence[tuple[AnyKind, Json]]


@dataclass(frozen=True, slots=True)
class Delete:
    """It has no owner any more, or no node, or no namespace."""

    kind: AnyKind
    thing: Json
    grace_s: int | None = None
    """0 for a pod whose node is gone."""


@dataclass(frozen=True, slots=True)
class Let:
    """Nothing that we know of holds it any more: these finalizers stay."""

    kind: AnyKind
    thing: Json
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """A budget's figures."""

    kind: AnyKind
    thing: Json
    status: Json


Step = Delete | Let | Count


def decide(there: Found, *, nodes: set[str], leaving: bool | set[str] = False) -> list[Step]:
    """`leaving`: namespaces that are to go, or whether the only one is."""
    return [*_deletions(there, nodes, leaving), *_releases(there), *_counts(there)]


def _deletions(there: Found, nodes: set[str], leaving: bool | set[str]) -> Iterator[Step]:
    going = {_uid(thing) for _, thing in there if kinds.FOREGROUND in _holds(thing)}
    staying = {_uid(thing) for _, thing in there} - going
    for kind, thing in there:
        node = thing["spec"].get("nodeName") if kind.plural == "pods" else None
        owners = _owners(thing)
        emptied = leaving if isinstance(leaving, bool) else thing["metadata"].get("namespace") in leaving
        if node and node not in nodes:
            yield Delete(kind, thing, 0)
        elif "deletionTimestamp" in thing["metadata"]:
            continue
        elif emptied or (owners and not any(owner["uid"] in staying for owner in owners)):
            yield Delete(kind, thing)


def _releases(there: Found) -> Iterator[Step]:
    owned = {owner["uid"] for _, thing in there for owner in _owners(thing)}
    used = {
        (pod["metadata"].get("namespace"), volume["persistentVolumeClaim"]["claimName"])
        for kind, pod in there
        if kind.plural == "pods"
        for volume in pod["spec"].get("volumes") or []
        if "persistentVolumeClaim" in volume
    }
    for kind, thing in there:
        meta, holds = thing["metadata"], _holds(thing)
        if "deletionTimestamp" not in meta:
            continue
        free = {kinds.FOREGROUND} if _uid(thing) not in owned else set()
        if kind.plural == "persistentvolumeclaims" and (meta.get("namespace"), meta["name"]) not in used:
            free.add(IN_USE)
        if free & set(holds):
            yield Let(kind, thing, tuple(each for each in holds if each not in free))


def _counts(there: Found) -> Iterator[Step]:
    for kind, budget in there:
        if kind.plural == "poddisruptionbudgets":
            space = budget["metadata"].get("namespace")
            pods = [pod for other, pod in there if other.plural == "pods" and pod["metadata"].get("namespace") == space]
            status, known = counted(budget, pods), budget.get("status") or {}
            if any(known.get(key) != value for key, value in status.items()):
                yield Count(kind, budget, status)


def _uid(thing: Json) -> str:
    return str(thing["metadata"]["uid"])


def _holds(thing: Json) -> list[str]:
    return list(thing["metadata"].get("finalizers") or [])


def _owners(thing: Json) -> list[Json]:
    return list(thing["metadata"].get("ownerReferences") or [])


def counted(budget: Json, pods: list[Json]) -> Json:
    """The status of a budget: how many of its pods are healthy, and how many may go."""
    spec = budget["spec"]
    fits = selectors.by_structure(spec.get("selector"))
    chosen = [pod for pod in pods if fits(pod["metadata"].get("labels") or {}) and not is_over(pod)]
    healthy = sum(1 for pod in chosen if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))
    total = len(chosen)
    if "minAvailable" in spec:
        desired = _share(spec["minAvailable"], total)
    else:
        desired = total - _share(spec.get("maxUnavailable", 1), total)
    return {
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "disruptionsAllowed": max(0, healthy - max(0, desired)),
        "expectedPods": total,
        "observedGeneration": budget["metadata"].get("generation", 1),
    }


def _share(wanted: int | str, total: int) -> int:
    if isinstance(wanted, str) and wanted.endswith("%"):
        return -(-total * int(wanted[:-1]) // 100)
    return int(wanted)


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def refuse_disruption(pod: Json, budgets: list[Json]) -> None:
    """429 where a budget does not let this pod go now; a pod that is not ready, or over, may always go."""
    if is_over(pod) or not is_ready(pod):
        return
    labels = pod["metadata"].get("labels") or {}
    for budget in budgets:
        status = budget["status"]
        if selectors.by_structure(budget["spec"].get("selector"))(labels) and status["disruptionsAllowed"] <= 0:
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refused(429, "TooManyRequests", why, retry_after_s=10)


class Housekeeping:
    """Brings the objects of our API server up to date after every change."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry, ca: str) -> None:
        self._life, self._registry, self._ca = lifecycle, registry, ca
        self._busy = False

    def after(self, resource: str, change: Change) -> None:
        if self._busy:
            return  # the loop below sees it
        self._busy = True
        store, before = self._life.store, -1
        try:
            if resource == "namespaces" and change.type == "ADDED":
                self._furnish(change.key[1])
            while store.version != before:
                before = store.version
                self._round()
        finally:
            self._busy = False

    def _furnish(self, namespace: str) -> None:
        self._life.create(kinds.ACCOUNTS, namespace, {"metadata": {"name": "default"}})
        body = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self._ca}}
        self._life.create(kinds.CONFIG_MAPS, namespace, body)

    def _round(self) -> None:
        store = self._life.store
        there = [(self._registry.of_resource(resource), store.get(resource, key)) for resource, key in store.entries()]
        leaving = {
            space["metadata"]["name"] for space in store.all("namespaces") if space["metadata"].get("deletionTimestamp")
        }
        nodes = {node["metadata"]["name"] for node in store.all("nodes")}
        for step in decide([(k, thing) for k, thing in there if thing], nodes=nodes, leaving=leaving):
            self._do(step)
        for name in leaving:
            if not any(key[0] == name for _, key in store.entries()):
                store.drop("namespaces", ("", name))

    def _do(self, step: Step) -> None:
        kind, meta = step.kind, step.thing["metadata"]
        assert isinstance(kind, kinds.Kind)
        key = (meta.get("namespace", ""), meta["name"])
        thing = copy.deepcopy(self._life.store.get(kind.resource, key))
        if thing is None:
            return
        match step:
            case Delete(grace_s=0):
                self._fail(key, thing)
                self._life.delete(kind, key, {"gracePeriodSeconds": 0})
            case Delete():
                self._life.delete(kind, key, {})
            case Let(holds=holds):
                thing["metadata"]["finalizers"] = list(holds)
                thing["metadata"].pop("resourceVersion")
                self._life.change(kind, key, thing)
            case Count(status=status):
                self._life.store.put(kind.resource, key, {**thing, "status": status})

    def _fail(self, key: Key, pod: Json) -> None:
        if not is_over(pod):
            entry = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
            entry["message"] = "PodGC: node no longer exists"
            pod["status"]["phase"] = "Failed"
            pod["status"]["conditions"] = [*(pod["status"].get("conditions") or []), entry]
            self._life.store.put("pods", key, pod)
