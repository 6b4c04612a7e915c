"""What a server fills in and refuses, by kind: names and labels of everything; namespaces, accounts, services; pods.

In: an object on its way into the store. Out: the same with defaults, or what is wrong with it. `pod_rules` has what is
special of pods, `definitions` what is of CustomResourceDefinitions.
"""

import base64
import re
from collections.abc import Iterator

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.object_store import Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import custom_resources, pod_rules
from springtide_lab.kubernetes.objects.kinds import ACCOUNTS, BUDGETS, CLASSES, CRDS, NAMESPACES, PODS, Kind

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RULES_NAME = re.compile(r"[^/%]+")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def name_faults(kind: Kind, meta: Json) -> Iterator[str]:
    name = meta.get("name") or ""
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
        return
    form, longest = SUBDOMAIN, 253
    if kind.plural == "services":
        form, longest = SERVICE, 63
    elif kind is NAMESPACES:
        form, longest = LABEL, 63
    elif kind.group == "rbac.authorization.k8s.io":
        form = RULES_NAME
    if not form.fullmatch(name) or len(name) > longest:
        yield f'metadata.name: Invalid value: "{name}": must match {form.pattern!r} and have at most {longest} letters'
    yield from label_faults(meta.get("labels"), "metadata.labels")


def label_faults(labels: Json | None, path: str) -> Iterator[str]:
    """What is wrong with labels: a value has at most 63 characters, and none that are odd."""
    for key, value in (labels or {}).items():
        if not KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield f'{path}: Invalid value: "{key}": name part must be a qualified name'
        if not isinstance(value, str) or not VALUE.fullmatch(value) or len(value) > 63:
            yield f'{path}: Invalid value: "{value}": a valid label value has at most 63 characters of [-A-Za-z0-9_.]'


def admit_new(store: Store, kind: Kind, item: Json) -> Json:
    meta, namespace = item["metadata"], item["metadata"].get("namespace", "")
    if kind is PODS:
        return pod_rules.admit_new(store, item)
    if kind is NAMESPACES:
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
        item["spec"] = {"finalizers": ["kubernetes"]}
        item["status"] = {"phase": "Active"}
    elif kind is CRDS:
        custom_resources.fill_in(item)
    elif kind.plural == "services":
        _fill_service(item)
    elif kind.plural == "secrets":
        item.setdefault("type", "Opaque")
        _fold_plain(item)
    elif kind.plural == "persistentvolumeclaims":
        item["status"] = {"phase": "Pending"}
        item["spec"].setdefault("volumeMode", "Filesystem")
    elif kind is BUDGETS:
        item["status"] = {
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "disruptionsAllowed": 0,
            "expectedPods": 0,
            "observedGeneration": 0,
        }
    elif kind is CLASSES:
        item.setdefault("preemptionPolicy", "PreemptLowerPriority")
    elif kind is ACCOUNTS and namespace == "":
        raise status_errors.bad_request("a service account has a namespace")
    return item


def admit_change(store: Store, kind: Kind, new: Json, old: Json, part: str) -> Json:
    if kind is PODS:
        return pod_rules.admit_change(new, old, part)
    if kind is CRDS:
        custom_resources.fill_in(new)
    if kind.plural == "secrets":
        _fold_plain(new)
    return new


def faults(kind: Kind, item: Json, old: Json | None) -> Iterator[str]:
    yield from label_faults(item["metadata"].get("labels"), "metadata.labels")
    for index, owner in enumerate(item["metadata"].get("ownerReferences") or []):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield f"metadata.ownerReferences[{index}].{key}: Required value: must not be empty"
    if kind is PODS:
        yield from pod_rules.faults(item, old)
    elif kind is CRDS:
        yield from custom_resources.faults(item)
    elif kind.plural in ("secrets", "configmaps"):
        size = sum(len(str(value)) for key in ("data", "binaryData") for value in (item.get(key) or {}).values())
        if size > 1024 * 1024 * 4 // 3:
            yield "data: Too long: may not be more than 1048576 bytes"
        if old is not None and old.get("immutable") and (item.get("data") != old.get("data")):
            yield "data: Forbidden: field is immutable when `immutable` is set"
    elif kind.plural == "services" and old is not None:
        if item["spec"].get("clusterIP", old["spec"]["clusterIP"]) != old["spec"]["clusterIP"]:
            yield "spec.clusterIPs[0]: Invalid value: may not change once set"
    elif kind.group == "rbac.authorization.k8s.io" and kind.plural.endswith("bindings"):
        if old is not None and item.get("roleRef") != old.get("roleRef"):
            yield "roleRef: Invalid value: cannot change roleRef"
    elif kind is BUDGETS:
        spec = item.get("spec") or {}
        if ("minAvailable" in spec) and ("maxUnavailable" in spec):
            yield "spec: Invalid value: minAvailable and maxUnavailable cannot be both set"
    elif kind.plural == "leases" and (item.get("spec") or {}).get("leaseTransitions", 0) < 0:
        yield "spec.leaseTransitions: Invalid value: must be greater than or equal to 0"


def grace_of(kind: Kind, item: Json, asked: int | None) -> int:
    """How long an object that is being deleted may take to end: only pods may take any time."""
    if kind is not PODS:
        return 0
    return pod_rules.grace_of(item, asked)


def _fill_service(item: Json) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if "clusterIP" not in spec:
        number = sum(item["metadata"]["uid"].encode()) * 251 + len(item["metadata"]["name"])
        spec["clusterIP"] = f"10.96.{number // 250 % 250}.{1 + number % 250}"
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    item["status"] = {"loadBalancer": {}}


def _fold_plain(item: Json) -> None:
    for key, value in (item.pop("stringData", None) or {}).items():
        item.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
