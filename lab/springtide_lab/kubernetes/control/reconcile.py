"""Reconcile objects as a cluster's controller manager does: `decide` (pure) chooses steps, `Housekeeping` applies them.

Every namespace gets an account and the server's certificate. Owned objects are deleted with their owner. A deleted
namespace is emptied and removed. The status of budgets is updated. Pods of lost nodes are removed, and so are
deleted claims that no pod uses.
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
"""Kind of an object, in the form of the lab's API server or of the product's client."""
Found = Sequence[tuple[AnyKind, Json]]


@dataclass(frozen=True, slots=True)
class Delete:
    """Step that deletes an object whose owner, node or namespace no longer exists."""

    kind: AnyKind
    thing: Json
    grace_s: int | None = None
    """Grace period in seconds, or 0 for a pod whose node no longer exists."""


@dataclass(frozen=True, slots=True)
class Let:
    """Step that removes finalizers that no longer apply; `holds` lists the finalizers that stay."""

    kind: AnyKind
    thing: Json
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Step that updates the status of a disruption budget."""

    kind: AnyKind
    thing: Json
    status: Json


Step = Delete | Let | Count


def decide(there: Found, *, nodes: set[str], leaving: bool | set[str] = False) -> list[Step]:
    """Return the steps for these objects. `leaving` names the namespaces to empty; True means all objects."""
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
    """Return the status of a budget: how many of its pods are healthy, and how many may be evicted."""
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
    """Raise Refused (429) if a budget forbids to evict this pod now. A pod that is not ready can always be evicted."""
    if is_over(pod) or not is_ready(pod):
        return
    labels = pod["metadata"].get("labels") or {}
    for budget in budgets:
        status = budget["status"]
        if selectors.by_structure(budget["spec"].get("selector"))(labels) and status["disruptionsAllowed"] <= 0:
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refused(429, "TooManyRequests", why, retry_after_s=10)


class Housekeeping:
    """Reconcile the objects of our API server after every change."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry, ca: str) -> None:
        self._life, self._registry, self._ca = lifecycle, registry, ca
        self._busy = False

    def after(self, resource: str, change: Change) -> None:
        if self._busy:
            return  # the running loop below handles this change
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
