"""Pure. Steps that the operator can take in a cluster. In: `operator.lifecycle`, `operator.pod_plan`. Next:
`operator.executor`.

All steps are idempotent, even with two operators: names are fixed, and deletions name a uid.
"""

from dataclasses import dataclass, field

from springtide.domain.plan.scale_plan import PodWish
from springtide.platforms.k8s.api.kinds import Object


@dataclass(frozen=True, slots=True)
class Prepare:
    """Create all that a master's pod needs: service, secret, permissions, Lease, plan, volume."""


@dataclass(frozen=True, slots=True)
class MakeMaster:
    """Create the master's pod."""

    pod: Object
    number: int
    in_a_row: int
    """Number of short-lived masters in a row before this one."""


@dataclass(frozen=True, slots=True)
class MakePod:
    """Create the pod of a role."""

    entry: PodWish
    pod: Object


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod, within its grace period or at once."""

    name: str
    uid: str
    grace_s: int | None
    why: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Request the eviction of a pod, which respects the servers' disruption budget and drains the pod."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Change the resources of a running pod."""

    name: str
    container: str
    resources: Object = field(hash=False)


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Adapt the disruption budget to the number of servers."""

    servers: int


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a finished job whose retention time is over."""

    why: str


Step = Prepare | MakeMaster | MakePod | DeletePod | EvictPod | ResizePod | SetBudget | DeleteJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSteps:
    """Steps to take now, and the time of the next visit without changes."""

    steps: tuple[Step, ...] = ()
    again_s: float | None = None


def sooner(*times: float | None) -> float | None:
    known = [each for each in times if each is not None]
    return min(known) if known else None
