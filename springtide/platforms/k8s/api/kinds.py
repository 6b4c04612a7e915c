"""Pure. Kinds of Kubernetes objects, their API paths, and how the API writes quantities, times and conditions."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide import errors

_UNITS: dict[str, int] = {
    **{f"{unit}i": 1 << (10 * power) for power, unit in enumerate("KMGTPE", 1)},
    **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)},
}

GROUP = "springtide.dev"
VERSION = "v1alpha1"
Object = dict[str, Any]
"""A Kubernetes object as a dict: apiVersion, kind, metadata, spec, status."""


def parse_quantity(value: Any) -> float:
    text = str(value).strip()
    try:
        for unit, size in _UNITS.items():
            if text.endswith(unit):
                return float(text.removesuffix(unit)) * size
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise errors.BadInput(f"quantity {text!r}: expected a number and a unit, such as 500m or 4Gi") from None


def cpu_quantity(cores: float) -> str:
    return f"{max(1, round(cores * 1000))}m"


def memory_quantity(size: int) -> str:
    for unit, bytes_ in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size and size % bytes_ == 0:
            return f"{size // bytes_}{unit}"
    return str(size)


def timestamp(at: float, *, micro: bool = False) -> str:
    """Format seconds since 1970 as the API does. `micro` is for MicroTime fields."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(f"%Y-%m-%dT%H:%M:%S{'.%f' if micro else ''}Z")


def seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp).timestamp()


def condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (thing.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), {})


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One kind of object."""

    api: str
    kind: str
    plural: str
    namespaced: bool = True

    def __str__(self) -> str:
        return self.plural if "/" not in self.api else f"{self.plural}.{self.api.partition('/')[0]}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = ["/api" if "/" not in self.api else "/apis", self.api]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *([name] if name else []), *([subresource] if subresource else [])])

    def body(self, name: str, namespace: str = "", **fields: Any) -> Object:
        metadata = {"name": name, **({"namespace": namespace} if namespace and self.namespaced else {})}
        return {"apiVersion": self.api, "kind": self.kind, "metadata": metadata, **fields}


PODS = ObjectKind("v1", "Pod", "pods")
SERVICES = ObjectKind("v1", "Service", "services")
SECRETS = ObjectKind("v1", "Secret", "secrets")
CONFIG_MAPS = ObjectKind("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNTS = ObjectKind("v1", "ServiceAccount", "serviceaccounts")
CLAIMS = ObjectKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENTS = ObjectKind("v1", "Event", "events")
NAMESPACES = ObjectKind("v1", "Namespace", "namespaces", namespaced=False)
NODES = ObjectKind("v1", "Node", "nodes", namespaced=False)
DEPLOYMENTS = ObjectKind("apps/v1", "Deployment", "deployments")
ROLES = ObjectKind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS = ObjectKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CLUSTER_ROLES = ObjectKind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = ObjectKind(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
DISRUPTION_BUDGETS = ObjectKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
LEASES = ObjectKind("coordination.k8s.io/v1", "Lease", "leases")
DEFINITIONS = ObjectKind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
ELASTIC_JOBS = ObjectKind(f"{GROUP}/{VERSION}", "ElasticJob", "elasticjobs")
SCALE_PLANS = ObjectKind(f"{GROUP}/{VERSION}", "ScalePlan", "scaleplans")

KNOWN = tuple(known for known in tuple(globals().values()) if isinstance(known, ObjectKind))


def kind_of(manifest: Object) -> ObjectKind:
    wanted = (manifest["apiVersion"], manifest["kind"])
    return next(known for known in KNOWN if (known.api, known.kind) == wanted)


def key_of(thing: Object) -> tuple[str, str]:
    metadata = thing.get("metadata", {})
    return metadata.get("namespace", ""), metadata.get("name", "")
