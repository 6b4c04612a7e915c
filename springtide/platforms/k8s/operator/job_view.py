"""Pure. Snapshot of one job, on which the operator bases its decisions. The operator reads the snapshot from the
cluster each time. Also computes the capacity of nodes.

`operator.executor` reads the pods first, so that the job's status is never older than its pods. Next:
`operator.lifecycle` and `operator.pod_plan` decide, `operator.status_reports` reports.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.scale_plan import PlanStatus, ScalePlan
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.objects import names, pods
from springtide.platforms.k8s.objects.job_objects import JobObject
from springtide.platforms.k8s.objects.pod_status import Pod
from springtide.platforms.k8s.objects.pods import Site

DOOMING = {
    "cloud.google.com/impending-node-termination": "the cloud reclaims this node",
    "aws-node-termination-handler/spot-itn": "the cloud reclaims this spot node",
    "aws-node-termination-handler/scheduled-maintenance": "this node is due for maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination": "this node is being replaced",
    "karpenter.sh/disrupted": "Karpenter gives this node back",
    "karpenter.sh/disruption": "Karpenter gives this node back",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes this node",
    "node.kubernetes.io/out-of-service": "this node is out of service",
}
"""Taints with which clouds and autoscalers announce the removal of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """Snapshot of one job."""

    job: JobObject
    site: Site
    at: float
    """Time of the snapshot, in seconds since 1970."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    """Names of pods with the job's label but a different owner, usually an earlier job of the same name."""
    plan: ScalePlan | None = None
    """The master's plan; None if the ElasticJob is missing or invalid."""
    plan_fault: str = ""
    plan_generation: int = 0
    plan_status: PlanStatus = field(default_factory=PlanStatus)
    can_resize: bool = False
    nodes: tuple[Mapping[str, Any], ...] = ()
    doomed: Mapping[str, str] = field(default_factory=dict)
    """Nodes that will be removed, each with the source of the notice."""

    @property
    def master(self) -> Pod | None:
        return self.pods.get(names.master(self.job.name))

    @property
    def roles(self) -> dict[str, Pod]:
        return {
            name: pod
            for name, pod in self.pods.items()
            if (life := names.life_of(pod)) is not None and life.role.kind is not RoleKind.MASTER
        }


def sorted_out(pods: Iterable[Pod], uid: str) -> tuple[dict[str, Pod], frozenset[str]]:
    own, foreign = {}, set()
    for pod in pods:
        owners = pod["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == uid for owner in owners):
            own[pod["metadata"]["name"]] = pod
        else:
            foreign.add(pod["metadata"]["name"])
    return own, frozenset(foreign)


def capacity_for(job: JobObject, nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the capacity fields of a `PlanStatus`: the total over the nodes on which the job's pods can run. The total
    includes resources that other pods use."""
    wish = job.job.kubernetes
    kept = (*wish.tolerations, *pods.gpu_tolerations(job.job))
    usual = [node for node in nodes if usable(node, wish.node_selector, kept)]
    offered = [node.get("status", {}).get("allocatable") or {} for node in usual]
    cpus = [kinds.parse_quantity(resources.get("cpu", 0)) for resources in offered]
    memories = [int(kinds.parse_quantity(resources.get("memory", 0))) for resources in offered]
    found = {"cpu": sum(cpus), "memory": sum(memories)}
    found |= {"node_cpu": max(cpus, default=0), "node_memory": max(memories, default=0)}
    found["gpus"] = sum(int(kinds.parse_quantity(each.get(pods.GPU, 0))) for each in offered)
    return {name: amount or None for name, amount in found.items()}


def usable(node: Mapping[str, Any], selector: Mapping[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    spec, labels = node.get("spec") or {}, node.get("metadata", {}).get("labels") or {}
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    kept = [taint for taint in spec.get("taints") or [] if taint.get("effect") in ("NoSchedule", "NoExecute")]
    given = list(tolerations)
    return all(any(tolerates(toleration, taint) for toleration in given) for taint in kept)


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return True if a toleration matches a taint by the API's rules: a missing key or effect matches any value."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def doomed(nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    found = {}
    for node in nodes:
        for taint in (node.get("spec") or {}).get("taints") or []:
            if taint.get("key") in DOOMING:
                found[node["metadata"]["name"]] = f"{DOOMING[taint['key']]} (taint {taint['key']})"
    return found
