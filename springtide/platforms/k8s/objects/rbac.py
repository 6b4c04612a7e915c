"""Pure. What the operator and users may do, rule by rule, each with its reason: the table in docs/design/kubernetes.md.

Next: `manifests` makes a ClusterRole of them, or a Role where the operator looks after one namespace only. A master's
own rights are in `objects.rights`: nobody can grant what they may not do, so all of those are here too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names

OURS, RBAC = names.GROUP, "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Right:
    """One rule."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    cluster: bool = False
    """Of things that are in no namespace."""

    @property
    def rule(self) -> Object:
        """As a Role has it."""
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}


LOOK = ("get", "list", "watch")

OPERATOR = (
    Right(OURS, "elasticjobs", (*LOOK, "delete"), "hears of jobs; deletes those whose keepS is over"),
    Right(OURS, "elasticjobs/status", ("get", "patch", "update"), "says what is wrong while there is no master"),
    Right(OURS, "scaleplans", (*LOOK, "create", "update", "patch"), "makes the empty plan of a job, hears of changes"),
    Right(OURS, "scaleplans/status", ("get", "patch", "update"), "says what became of each pod"),
    Right("", "pods", (*LOOK, "create", "delete"), "makes and ends the pods of jobs"),
    Right("", "pods/resize", ("get", "patch"), "changes CPU and memory of running pods"),
    Right("", "pods/eviction", ("create",), "empties nodes that are about to go, within the servers' budget"),
    Right("", "services", ("get", "create"), "names for a job's pods"),
    Right("", "secrets", ("create",), "a job's secret and certificates; it can read no secret, not even these"),
    Right("", "serviceaccounts", ("get", "create"), "the account of a job's master"),
    Right(RBAC, "roles", ("get", "create", "patch", "update"), "the rights of a job's master"),
    Right(RBAC, "rolebindings", ("get", "create"), "gives that account these rights"),
    Right(
        "coordination.k8s.io", "leases", ("get", "create", "update", "patch"), "the Lease by which masters get terms"
    ),
    Right("", "persistentvolumeclaims", ("get", "create"), "the volume of a run, if the job wants one"),
    Right("policy", "poddisruptionbudgets", ("get", "create", "patch"), "one server at a time may be evicted"),
    Right("", "events", ("create", "patch"), "tells people what happens: kubectl describe"),
    Right("", "nodes", LOOK, "what nodes offer, and which are about to go", cluster=True),
)

EDIT = (
    Right(OURS, "elasticjobs", (*LOOK, "create", "update", "patch", "delete"), "submit, stop and delete jobs"),
    Right(OURS, "scaleplans", (*LOOK, "create", "delete"), "scale a job by hand"),
)

VIEW = (
    Right(OURS, "elasticjobs", LOOK, "look at jobs"),
    Right(OURS, "scaleplans", LOOK, "look at what masters want"),
)


def rules(rights: Iterable[Right], *, everywhere: bool = True) -> list[Object]:
    """As a Role has them; within one namespace there are no nodes."""
    return [right.rule for right in rights if everywhere or not right.cluster]
