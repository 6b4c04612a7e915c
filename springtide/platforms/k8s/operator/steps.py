"""Pure. What the operator can do to a cluster. In: `operator.mastering`, `operator.planned`. Next: `operator.doing`.

Each is harmless when it is done twice, or by two operators: names are the same, and what is deleted is named by uid.
"""

from dataclasses import dataclass, field

from springtide.domain.plan.scale_plan import PodWish
from springtide.platforms.k8s.api.kinds import Object


@dataclass(frozen=True, slots=True)
class Prepare:
    """See that all is there that a master's pod needs: service, secret, rights, Lease, plan, volume."""


@dataclass(frozen=True, slots=True)
class MakeMaster:
    """Make the master's pod."""

    pod: Object
    number: int
    in_a_row: int
    """How many before it did not last."""


@dataclass(frozen=True, slots=True)
class MakePod:
    """Make the pod of a role."""

    entry: PodWish
    pod: Object


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Take a pod away; within its time to end, or at once."""

    name: str
    uid: str
    grace_s: int | None
    why: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Ask for a pod's eviction: the servers' budget is kept to, and it drains."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Let a running pod have other resources."""

    name: str
    container: str
    resources: Object = field(hash=False)


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Let the disruption budget fit the number of servers."""

    servers: int


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The time is over for which a job that has ended was to be kept."""

    why: str


Step = Prepare | MakeMaster | MakePod | DeletePod | EvictPod | ResizePod | SetBudget | DeleteJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSteps:
    """What to do now, and when to look again if nothing happens until then."""

    steps: tuple[Step, ...] = ()
    again_s: float | None = None


def sooner(*times: float | None) -> float | None:
    known = [each for each in times if each is not None]
    return min(known) if known else None
