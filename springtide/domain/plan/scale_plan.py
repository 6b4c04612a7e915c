"""Pure. ScalePlan: the pods that a cluster must run for a job, or the role counts that a user requests.

In: on Kubernetes the agent beside the master writes one plan with the name of the job, whenever the wanted roles
change. Users may create further plans. Out: `platforms.k8s.operator` creates the pods of the master's plan. The agent
passes user plans to the master.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from springtide import errors
from springtide.domain.core.roles import RANKED, Life, Role, RoleKind, WantedRole

Origin = Literal["master", "user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWish:
    """One pod that must be there: one life of a role. It is made once; when it has ended the next life is another."""

    role: str
    """server, worker or data-worker."""
    rank: int
    incarnation: int = 0
    cpu: float | None = None
    """Cores; open: no limit."""
    memory: int | None = None
    """Bytes; open: no limit."""
    low: bool = False
    """A worker beyond the quota: others may take its place."""

    def __post_init__(self) -> None:
        if self.role not in RANKED:
            raise errors.UnknownName("role of a pod", self.role, map(str, RANKED))
        if self.rank < 0 or self.incarnation < 0:
            raise errors.BadInput(f"{self.role} {self.rank}, life {self.incarnation}: wanted numbers from 0 up")

    @classmethod
    def of(cls, wanted: WantedRole) -> Self:
        """Convert a role that the master wants to the pod that the cluster must run."""
        role = wanted.role
        return cls(
            role=str(role.kind),
            rank=role.rank,
            incarnation=wanted.incarnation,
            cpu=wanted.cpu,
            memory=wanted.memory,
            low=wanted.low,
        )

    @property
    def life(self) -> Life:
        return Life(Role(RoleKind(self.role), self.rank), self.incarnation)

    def pod_name(self, job: str) -> str:
        """Return the pod name. `ctr-worker-0-1` is the second incarnation of worker 0 of job ctr."""
        return f"{job}-{self.role}-{self.rank}-{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """Written by the master: all pods that must be there. Written by a user: how many, once."""

    job: str
    origin: Origin = "user"
    pods: tuple[PodWish, ...] = ()
    """All that must be there; others of the job are asked to end. By the master only."""
    kill: tuple[str, ...] = ()
    """Names of pods that must end at once. By the master only."""
    workers: int | None = None
    servers: int | None = None
    data_workers: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.origin not in ("master", "user"):
            raise errors.UnknownName("origin of a scale plan", self.origin, ("master", "user"))
        names = [each.pod_name(self.job) for each in self.pods]
        if len(set(names)) < len(names):
            raise errors.BadInput(f"scale plan of {self.job}: a pod is named twice")
        for name, number, least in (
            ("workers", self.workers, 1),
            ("servers", self.servers, 1),
            ("dataWorkers", self.data_workers, 0),
        ):
            if number is not None and number < least:
                raise errors.BadInput(f"{name} {number}: wanted {least} or more")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.pod_name(self.job) for each in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """What became of one pod of a plan, as the operator saw it last."""

    phase: str
    """Making, Pending, Running, Ending, Succeeded, Failed, Gone (made, and not there any more) or Refused."""
    why: str = ""
    """For people: why it is not running, such as what the scheduler or the kubelet says."""
    resized: str = ""
    """A change of its resources while it runs: Proposed, InProgress, Done, Deferred, Infeasible or Unsupported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """What the operator has made of the master's plan; of a user's: what the master said to it."""

    phase: str = ""
    """Master's: Applying or Applied. User's: Applied, Rejected or Superseded."""
    message: str = ""
    made: Mapping[str, int] = field(default_factory=dict)
    """The highest life of each role that was ever made, such as worker-0: 1. None is made twice."""
    pods: Mapping[str, PodState] = field(default_factory=dict)
    budget: int | None = None
    """Servers that the disruption budget was last set for."""
    in_place_resize: bool = False
    """Whether this cluster can change what a running pod may take."""
    cpu: float | None = None
    """Cores of all nodes that pods of this job may run on."""
    memory: int | None = None
    """Bytes of memory of these."""
    node_cpu: float | None = None
    """Cores of the largest of them."""
    node_memory: int | None = None
    observed_generation: int = 0
    """Of the plan that this tells of."""
    applied_at: str = ""
