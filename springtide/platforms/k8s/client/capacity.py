"""Pure. What the nodes of a cluster have to offer a job: those that its selector and tolerations let it use.

In: nodes from the API, an ElasticJob. Out: cores and bytes, all together and of the largest node; the operator writes
them into the job's plan, since masters may not look at nodes. A cluster that grows by itself has more than it shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from springtide.platforms.k8s.api import quantities
from springtide.platforms.k8s.objects.job_object import JobObject


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """What there is."""

    nodes: int = 0
    cpu: float = 0.0
    memory: int = 0
    node_cpu: float = 0.0
    node_memory: int = 0


def room_for(job: JobObject, nodes: Iterable[Mapping[str, Any]]) -> NodeCapacity:
    """Of all nodes where its pods could run; other pods are not counted."""
    wish = job.job.kubernetes
    cpus, memories = [], []
    for node in nodes:
        if usable(node, wish.node_selector, wish.tolerations):
            offered = node.get("status", {}).get("allocatable") or {}
            cpus.append(quantities.read(offered.get("cpu", 0)))
            memories.append(int(quantities.read(offered.get("memory", 0))))
    if not cpus:
        return NodeCapacity()
    return NodeCapacity(
        nodes=len(cpus), cpu=sum(cpus), memory=sum(memories), node_cpu=max(cpus), node_memory=max(memories)
    )  # fmt: skip


def usable(node: Mapping[str, Any], selector: Mapping[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a pod with this selector and these tolerations could be put there."""
    spec, labels = node.get("spec") or {}, node.get("metadata", {}).get("labels") or {}
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    kept = [taint for taint in spec.get("taints") or [] if taint.get("effect") in ("NoSchedule", "NoExecute")]
    given = list(tolerations)
    return all(any(tolerates(each, taint) for each in given) for taint in kept)


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """By the rules of the API: a key left out means any, an effect left out too."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
