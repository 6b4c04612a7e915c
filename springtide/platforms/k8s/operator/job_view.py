"""Pure. All that the operator knows of one job when it decides: read from the cluster a moment ago, remembered nowhere.

In: objects from the API (`operator.doing` reads them: pods first, so that the job's status is never older than what its
pods show). Next: `operator.mastering` and `operator.planned` decide by it, `operator.reporting` says what became of it.
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
    """One job."""

    job: JobObject
    site: Site
    at: float
    """Seconds since 1970."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """Its own, by name."""
    foreign: frozenset[str] = frozenset()
    """Names of pods with its label that belong to another: an earlier job of the same name, as a rule."""
    plan: ScalePlan | None = None
    """The master's own; None: there is none yet, or it makes no sense."""
    plan_fault: str = ""
    plan_generation: int = 0
    plan_status: PlanStatus = field(default_factory=PlanStatus)
    can_resize: bool = False
    nodes: tuple[Mapping[str, Any], ...] = ()
    doomed: Mapping[str, str] = field(default_factory=dict)
    """Nodes that are about to be taken away, and who says so."""

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
