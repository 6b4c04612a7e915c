"""What a cluster's own controllers see to, as far as jobs can tell: namespaces, accounts, budgets.

In: changes of the store. Out: further changes: a new namespace has a `default` account and the server's certificate;
one that is being deleted is emptied, then goes; a budget's status says how many pods may be disrupted now.
"""

from springtide.testing.kubernetes import quantities, selectors, statuses
from springtide.testing.kubernetes.kinds import ACCOUNTS, BUDGETS, NAMESPACES, PODS, Kind
from springtide.testing.kubernetes.lifecycle import Lifecycle
from springtide.testing.kubernetes.paths import Registry
from springtide.testing.kubernetes.statuses import Json
from springtide.testing.kubernetes.store import Change, Key

CONFIG_MAPS = Kind(plural="configmaps", kind="ConfigMap")


class Housekeeping:
    """Follows every change; see `after`."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry, ca: str) -> None:
        self._life, self._registry, self._ca = lifecycle, registry, ca
        self._busy: set[str] = set()

    def after(self, resource: str, change: Change) -> None:
        """Do what follows from a change."""
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
    """A number, or a percentage rounded up."""
    if isinstance(wanted, str) and wanted.endswith("%"):
        return -(-total * int(wanted[:-1]) // 100)
    return int(quantities.number(wanted))


def is_ready(pod: Json) -> bool:
    """Whether its Ready condition is true."""
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
            raise statuses.too_many(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                10,
                [{"reason": "DisruptionBudget", "message": why}],
            )
