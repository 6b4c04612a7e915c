"""Pure. Kinds of objects: those that every API server knows; `admission.kinds_of` reads more from definitions."""

from dataclasses import dataclass, field
from typing import Any

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects and how it behaves."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    counted: bool = False
    """Whether `metadata.generation` counts the changes to its spec."""
    custom: bool = False
    schema: dict[str, Any] | None = field(default=None, hash=False, compare=False)
    """The structural schema of a custom kind."""
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
    return Kind(plural, kind, "rbac.authorization.k8s.io", namespaced=namespaced)


CRDS = Kind(
    "customresourcedefinitions",
    "CustomResourceDefinition",
    "apiextensions.k8s.io",
    namespaced=False,
    short=("crd", "crds"),
    subresources=("status",),
    counted=True,
)
NAMESPACES = Kind("namespaces", "Namespace", namespaced=False, short=("ns",), subresources=("status", "finalize"))
PODS = Kind(
    "pods",
    "Pod",
    short=("po",),
    categories=("all",),
    subresources=("status", "binding", "eviction", "log", "resize"),
    counted=True,
    fields=POD_FIELDS,
)
NODES = Kind("nodes", "Node", namespaced=False, short=("no",), subresources=("status",), fields=("spec.unschedulable",))
BUDGETS = Kind(
    "poddisruptionbudgets", "PodDisruptionBudget", "policy", short=("pdb",), subresources=("status",), counted=True
)
CONFIG_MAPS = Kind("configmaps", "ConfigMap", short=("cm",))
ACCOUNTS = Kind("serviceaccounts", "ServiceAccount", short=("sa",), subresources=("token",))
CLASSES = Kind("priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False, short=("pc",))

BUILT_IN: tuple[Kind, ...] = (
    NAMESPACES,
    PODS,
    NODES,
    BUDGETS,
    ACCOUNTS,
    CLASSES,
    CRDS,
    Kind("services", "Service", short=("svc",), categories=("all",), subresources=("status",)),
    Kind("endpoints", "Endpoints", short=("ep",)),
    Kind("secrets", "Secret", fields=("type",)),
    CONFIG_MAPS,
    Kind("events", "Event", short=("ev",), fields=EVENT_FIELDS),
    Kind("persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), subresources=("status",)),
    Kind("persistentvolumes", "PersistentVolume", namespaced=False, short=("pv",), subresources=("status",)),
    Kind("resourcequotas", "ResourceQuota", short=("quota",), subresources=("status",)),
    Kind("limitranges", "LimitRange", short=("limits",)),
    Kind(
        "deployments",
        "Deployment",
        "apps",
        short=("deploy",),
        categories=("all",),
        subresources=("status",),
        counted=True,
    ),
    Kind("leases", "Lease", "coordination.k8s.io"),
    _rbac("roles", "Role", namespaced=True),
    _rbac("rolebindings", "RoleBinding", namespaced=True),
    _rbac("clusterroles", "ClusterRole", namespaced=False),
    _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind("networkpolicies", "NetworkPolicy", "networking.k8s.io", short=("netpol",), counted=True),
    Kind(
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io",
        namespaced=False,
        counted=True,
    ),
    Kind(
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io",
        namespaced=False,
        counted=True,
    ),
)
