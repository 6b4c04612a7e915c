"""Pure. Snapshot of one job that the operator decides on, read from the cluster and never cached.

In: objects from the API. `operator.executor` reads the pods first, so that the job's status is never older than its
pods. Next: `operator.lifecycle` and `operator.pod_plan` decide, `operator.status_reports` reports.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.scale_plan import PlanStatus, ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.job_object import JobObject
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator.pod_states import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """Snapshot of one job."""

    job: JobObject
    site: Site
    at: float
    """Time of the snapshot, in seconds since 1970."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """Pods of the job, by name."""
    foreign: frozenset[str] = frozenset()
    """Names of pods with the job's label but another owner, usually an earlier job of the same name."""
    plan: ScalePlan | None = None
    """The master's plan; None if it is missing or invalid."""
    plan_fault: str = ""
    plan_generation: int = 0
    plan_status: PlanStatus = field(default_factory=PlanStatus)
    can_resize: bool = False
    nodes: tuple[Mapping[str, Any], ...] = ()
    doomed: Mapping[str, str] = field(default_factory=dict)
    """Nodes that will be removed, with the source of the notice."""

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
        if any(each.get("uid") == uid for each in owners):
            own[pod["metadata"]["name"]] = pod
        else:
            foreign.add(pod["metadata"]["name"])
    return own, frozenset(foreign)


def read_status(given: Mapping[str, Any]) -> PlanStatus:
    """Read a plan's status; ignore fields of other versions."""
    known = {field.key for field in schema.fields_of(PlanStatus)}
    return schema.made(PlanStatus, {key: value for key, value in given.items() if key in known})
