"""Pure. Define the kinds of objects that every API server has; `admission.kinds_of` reads more from definitions."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects and its properties."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    counted: bool = False
    """True if `metadata.generation` counts the changes to its spec."""
    schema: dict[str, Any] | None = field(default=None, hash=False, compare=False)
    """The structural schema of a custom kind; None for a built-in kind."""

    @property
    def resource(self) -> str:
        """Full name of the kind, such as `pods` or `elasticjobs.springtide.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


FOREGROUND = "foregroundDeletion"
RBAC = "rbac.authorization.k8s.io"
STATUS = ("status",)
CRDS = Kind(
    *("customresourcedefinitions", "CustomResourceDefinition", "apiextensions.k8s.io"),
    namespaced=False,
    subresources=STATUS,
    counted=True,
)
NAMESPACES = Kind("namespaces", "Namespace", namespaced=False, subresources=("status", "finalize"))
PODS = Kind("pods", "Pod", subresources=("status", "binding", "eviction", "log", "resize"), counted=True)
NODES = Kind("nodes", "Node", namespaced=False, subresources=STATUS)
BUDGETS = Kind("poddisruptionbudgets", "PodDisruptionBudget", "policy", subresources=STATUS, counted=True)
CONFIG_MAPS = Kind("configmaps", "ConfigMap")
ACCOUNTS = Kind("serviceaccounts", "ServiceAccount", subresources=("token",))
CLASSES = Kind("priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False)

BUILT_IN: tuple[Kind, ...] = (
    NAMESPACES,
    PODS,
    NODES,
    BUDGETS,
    ACCOUNTS,
    CLASSES,
    CRDS,
    CONFIG_MAPS,
    Kind("services", "Service", subresources=STATUS),
    Kind("secrets", "Secret"),
    Kind("events", "Event"),
    Kind("persistentvolumeclaims", "PersistentVolumeClaim", subresources=STATUS),
    Kind("deployments", "Deployment", "apps", subresources=STATUS, counted=True),
    Kind("leases", "Lease", "coordination.k8s.io"),
    Kind("roles", "Role", RBAC),
    Kind("rolebindings", "RoleBinding", RBAC),
    Kind("clusterroles", "ClusterRole", RBAC, namespaced=False),
    Kind("clusterrolebindings", "ClusterRoleBinding", RBAC, namespaced=False),
)
