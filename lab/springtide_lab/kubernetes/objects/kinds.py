"""Pure. What kinds of objects the API has: those that every server knows, and how one more is described.

In: nothing, or a CustomResourceDefinition (`definitions` reads it into a `Kind`). Next: `paths` finds the kind of a
request, `store` keeps its objects, `discovery` tells clients of it.
"""

from dataclasses import dataclass, field
from typing import Any

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    type: str
    path: str
    """Where the value is, as a JSON path: `.status.phase`."""
    priority: int = 0
    format: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of objects and how it behaves."""

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    counted: bool = False
    """Whether `metadata.generation` counts the changes to its spec."""
    custom: bool = False
    schema: dict[str, Any] | None = field(default=None, hash=False, compare=False)
    """The structural schema of a custom kind."""
    columns: tuple[Column, ...] = ()
    fields: tuple[str, ...] = ()
    """What field selectors may name besides `metadata.name` and `metadata.namespace`."""
    singular: str = ""
    list_kind: str = ""

    @property
    def resource(self) -> str:
        """Its name among all: `pods`, `elasticjobs.springtide.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


POD_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    *("status.phase", "status.podIP"),
)
EVENT_FIELDS = (
    *(f"involvedObject.{each}" for each in ("kind", "namespace", "name", "uid")),
    *("reason", "type", "source"),
)


def _rbac(plural: str, kind: str, *, namespaced: bool) -> Kind:
    return Kind(group="rbac.authorization.k8s.io", plural=plural, kind=kind, namespaced=namespaced)


CRDS = Kind(
    group="apiextensions.k8s.io",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
    short=("crd", "crds"),
    subresources=("status",),
    counted=True,
)
NAMESPACES = Kind(
    plural="namespaces", kind="Namespace", namespaced=False, short=("ns",), subresources=("status", "finalize")
)
PODS = Kind(
    plural="pods",
    kind="Pod",
    short=("po",),
    categories=("all",),
    subresources=("status", "binding", "eviction", "log", "resize"),
    counted=True,
    fields=POD_FIELDS,
)
NODES = Kind(
    plural="nodes",
    kind="Node",
    namespaced=False,
    short=("no",),
    subresources=("status",),
    fields=("spec.unschedulable",),
)
BUDGETS = Kind(
    group="policy",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    short=("pdb",),
    subresources=("status",),
    counted=True,
)
ACCOUNTS = Kind(plural="serviceaccounts", kind="ServiceAccount", short=("sa",), subresources=("token",))
CLASSES = Kind(
    group="scheduling.k8s.io", plural="priorityclasses", kind="PriorityClass", namespaced=False, short=("pc",)
)

BUILT_IN: tuple[Kind, ...] = (
    NAMESPACES,
    PODS,
    NODES,
    BUDGETS,
    ACCOUNTS,
    CLASSES,
    CRDS,
    Kind(plural="services", kind="Service", short=("svc",), categories=("all",), subresources=("status",)),
    Kind(plural="endpoints", kind="Endpoints", short=("ep",)),
    Kind(plural="secrets", kind="Secret", fields=("type",)),
    Kind(plural="configmaps", kind="ConfigMap", short=("cm",)),
    Kind(plural="events", kind="Event", short=("ev",), fields=EVENT_FIELDS),
    Kind(plural="persistentvolumeclaims", kind="PersistentVolumeClaim", short=("pvc",), subresources=("status",)),
    Kind(
        plural="persistentvolumes", kind="PersistentVolume", namespaced=False, short=("pv",), subresources=("status",)
    ),
    Kind(plural="resourcequotas", kind="ResourceQuota", short=("quota",), subresources=("status",)),
    Kind(plural="limitranges", kind="LimitRange", short=("limits",)),
    Kind(
        group="apps",
        plural="deployments",
        kind="Deployment",
        short=("deploy",),
        categories=("all",),
        subresources=("status",),
        counted=True,
    ),
    Kind(group="coordination.k8s.io", plural="leases", kind="Lease"),
    _rbac("roles", "Role", namespaced=True),
    _rbac("rolebindings", "RoleBinding", namespaced=True),
    _rbac("clusterroles", "ClusterRole", namespaced=False),
    _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(group="networking.k8s.io", plural="networkpolicies", kind="NetworkPolicy", short=("netpol",), counted=True),
    Kind(
        group="admissionregistration.k8s.io",
        plural="validatingwebhookconfigurations",
        kind="ValidatingWebhookConfiguration",
        namespaced=False,
        counted=True,
    ),
    Kind(
        group="admissionregistration.k8s.io",
        plural="mutatingwebhookconfigurations",
        kind="MutatingWebhookConfiguration",
        namespaced=False,
        counted=True,
    ),
)
