"""What a cluster's own controllers see to, as far as jobs can tell: namespaces, accounts, budgets.

In: changes of the store. Out: changes: what is owned goes with its owner (`collecting`), pods with their node; a
new namespace has a `default` account and the server's certificate; one that is being deleted is emptied, then goes; a
budget's status says how many pods may be disrupted now.
"""

import copy

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_lifecycle import Lifecycle
from springtide_lab.kubernetes.api.object_store import Change, Key
from springtide_lab.kubernetes.api.paths import Registry
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.control import garbage_collector
from springtide_lab.kubernetes.objects import selectors
from springtide_lab.kubernetes.objects.kinds import ACCOUNTS, BUDGETS, NAMESPACES, NODES, PODS, Kind

WAITING = ("foregroundDeletion", "orphan")
"""Finalizers of owners that wait until what they own is gone, or let go."""
CONFIG_MAPS = Kind(plural="configmaps", kind="ConfigMap")


class Housekeeping:
    """Follows every change; see `after`."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry, ca: str) -> None:
        self._life, self._registry, self._ca = lifecycle, registry, ca
        self._busy: set[str] = set()
        self._uids: set[str] = set()

    def after(self, resource: str, change: Change) -> None:
        uid = change.now["metadata"]["uid"]
        self._uids.discard(uid) if change.type == "DELETED" else self._uids.add(uid)
        self._collect(resource, change)
        if resource == "namespaces" and change.type == "ADDED":
            self._furnish(change.key[1])
        terminating = [
            each["metadata"]["name"]
            for each in self._life.store.all("namespaces")
            if each["metadata"].get("deletionTimestamp")
        ]
        for namespace in terminating:
            self._empty(namespace)
        if resource == PODS.resource or (resource == BUDGETS.resource and change.type != "DELETED"):
            self._count(change.key[0])

    def _furnish(self, namespace: str) -> None:
        self._life.create(ACCOUNTS, namespace, {"metadata": {"name": "default"}})
        body = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": self._ca}}
        self._life.create(CONFIG_MAPS, namespace, body)

    def _collect(self, resource: str, change: Change) -> None:
        """Owned objects go after their owners, or before them, or stay: as the deletion asked."""
        store, uid = self._life.store, change.now["metadata"]["uid"]
        holds = change.now["metadata"].get("finalizers") or []
        if change.type != "DELETED" and garbage_collector.orphans([change.now], self._uids):
            self._go(resource, change.key)
        leaving = bool(change.now["metadata"].get("deletionTimestamp")) and change.type != "DELETED"
        if change.type == "DELETED" or (leaving and set(WAITING) & set(holds)):
            for other, key in garbage_collector.owned_by(uid, store.entries(), store.get):
                self._release(other, key, uid) if "orphan" in holds else self._go(other, key)
        if leaving:
            self._look_again(uid)
        if change.type == "DELETED":
            for owner in change.now["metadata"].get("ownerReferences") or []:
                self._look_again(owner["uid"])
        if resource == NODES.resource and change.type == "DELETED":
            names = {each["metadata"]["name"] for each in store.all(NODES.resource)}
            for pod in garbage_collector.stranded(store.all(PODS.resource), names):
                self._strand(pod)

    def _go(self, resource: str, key: Key) -> None:
        found = self._life.store.get(resource, key)
        if found is not None and not found["metadata"].get("deletionTimestamp"):
            self._life.delete(self._registry.of_resource(resource), key, {})

    def _release(self, resource: str, key: Key, uid: str) -> None:
        found = copy.deepcopy(self._life.store.get(resource, key) or {})
        owners = [each for each in found["metadata"].get("ownerReferences") or [] if each["uid"] != uid]
        found["metadata"]["ownerReferences"] = owners
        self._life.store.put(resource, key, found)

    def _look_again(self, uid: str) -> None:
        store = self._life.store
        for resource, key in list(store.entries()):
            found = store.get(resource, key)
            if found is None or found["metadata"]["uid"] != uid or not found["metadata"].get("deletionTimestamp"):
                continue
            holds = found["metadata"].get("finalizers") or []
            left = [each for each in holds if each not in WAITING]
            if left != holds and not garbage_collector.owned_by(uid, store.entries(), store.get):
                self._life.change(self._registry.of_resource(resource), key, _with_holds(found, left))

    def _strand(self, pod: Json) -> None:
        """The node of a pod is gone: it has failed, and goes by force."""
        key: Key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            failed = copy.deepcopy(pod)
            entry = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
            }
            failed["status"]["phase"] = "Failed"
            failed["status"]["conditions"] = [*(failed["status"].get("conditions") or []), entry]
            self._life.store.put(PODS.resource, key, failed)
        if self._life.store.get(PODS.resource, key) is not None:
            self._life.delete(PODS, key, {"gracePeriodSeconds": 0})

    def _empty(self, namespace: str) -> None:
        if namespace in self._busy:
            return
        self._busy.add(namespace)
        store = self._life.store
        try:
            for resource, key in list(store.entries()):
                found = store.get(resource, key)
                if key[0] == namespace and found is not None and not found["metadata"].get("deletionTimestamp"):
                    self._life.delete(self._registry.of_resource(resource), key, {})
            if not any(key[0] == namespace for _, key in store.entries()):
                store.drop(NAMESPACES.resource, ("", namespace))
        finally:
            self._busy.discard(namespace)

    def _count(self, namespace: str) -> None:
        store = self._life.store
        for budget in store.all(BUDGETS.resource, namespace):
            status = counted(budget, store.all(PODS.resource, namespace))
            if status != budget.get("status"):
                key: Key = (namespace, budget["metadata"]["name"])
                store.put(BUDGETS.resource, key, {**budget, "status": status})


def _with_holds(item: Json, holds: list[str]) -> Json:
    changed = copy.deepcopy(item)
    changed["metadata"]["finalizers"] = holds
    changed["metadata"].pop("resourceVersion", None)
    return changed


def counted(budget: Json, pods: list[Json]) -> Json:
    """Pure. The status of a budget: how many of its pods are healthy, and how many may go."""
    fits = selectors.by_structure(budget["spec"].get("selector"))
    chosen = [pod for pod in pods if fits(pod["metadata"].get("labels") or {}) and not _over(pod)]
    healthy = sum(1 for pod in chosen if is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))
    spec, total = budget["spec"], len(chosen)
    if "minAvailable" in spec:
        desired = share(spec["minAvailable"], total)
    else:
        desired = total - share(spec.get("maxUnavailable", 1), total)
    return {
        "currentHealthy": healthy,
        "desiredHealthy": max(0, desired),
        "disruptionsAllowed": max(0, healthy - max(0, desired)),
        "expectedPods": total,
        "observedGeneration": budget["metadata"].get("generation", 1),
    }


def share(wanted: int | str, total: int) -> int:
    if isinstance(wanted, str) and wanted.endswith("%"):
        return -(-total * int(wanted[:-1]) // 100)
    return int(selectors.number(wanted))


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def refuse_disruption(pod: Json, budgets: list[Json]) -> None:
    """429 where a budget does not let this pod go now; a pod that is not ready, or over, may always go."""
    if _over(pod) or not is_ready(pod):
        return
    mine = [
        each
        for each in budgets
        if selectors.by_structure(each["spec"].get("selector"))(pod["metadata"].get("labels") or {})
    ]
    for budget in mine:
        if budget["status"]["disruptionsAllowed"] <= 0:
            name, status = budget["metadata"]["name"], budget["status"]
            why = (
                f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has "
                f"{status['currentHealthy']} currently"
            )
            raise status_errors.too_many(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                10,
                [{"reason": "DisruptionBudget", "message": why}],
            )
