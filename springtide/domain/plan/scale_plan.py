"""Pure. ScalePlan: the pods that a cluster must run for a job, or the role counts that a user requests.

The agent beside the master writes one plan, whose pods `platforms.k8s.operator` creates. The agent also passes user
plans to the master.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from springtide import errors
from springtide.domain.core.roles import RANKED, Life, Role, RoleKind

Origin = Literal["master", "user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWish:
    """One pod that the cluster must run: one incarnation of a role. The operator creates each pod once."""

    role: str
    """server, worker or data-worker."""
    rank: int
    incarnation: int = 0
    cpu: float | None = None
    """Cores. Default: no limit."""
    memory: int | None = None
    """Bytes. Default: no limit."""

    def __post_init__(self) -> None:
        if self.role not in RANKED:
            raise errors.UnknownName("role of a pod", self.role, map(str, RANKED))
        if self.rank < 0 or self.incarnation < 0:
            raise errors.BadInput(f"{self.role} {self.rank}, life {self.incarnation}: expected numbers from 0 up")

    @property
    def life(self) -> Life:
        return Life(Role(RoleKind(self.role), self.rank), self.incarnation)

    def pod_name(self, job: str) -> str:
        """Return the pod name. `ctr-worker-0-1` is the second incarnation of worker 0 of job ctr."""
        return f"{job}-{self.role}-{self.rank}-{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """Plan of a job. A plan of the master lists all pods of the job. A plan of a user requests role counts."""

    job: str
    origin: Origin = "user"
    pods: tuple[PodWish, ...] = ()
    """All pods that the job must have. The operator stops all other pods of the job. Only the master sets this
    field."""
    kill: tuple[str, ...] = ()
    """Names of pods to kill immediately. Only the master sets this field."""
    workers: int | None = None
    servers: int | None = None
    data_workers: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.origin not in ("master", "user"):
            raise errors.UnknownName("origin of a scale plan", self.origin, ("master", "user"))
        names = [pod.pod_name(self.job) for pod in self.pods]
        if len(set(names)) < len(names):
            raise errors.BadInput(f"scale plan of {self.job}: a pod is named twice")
        for name, number, least in (
            ("workers", self.workers, 1),
            ("servers", self.servers, 1),
            ("dataWorkers", self.data_workers, 0),
        ):
            if number is not None and number < least:
                raise errors.BadInput(f"{name} {number}: expected {least} or more")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pod.pod_name(self.job) for pod in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """Last observed state of one pod in a plan."""

    phase: str
    """Making, Pending, Running, Ending, Succeeded, Failed, Gone (created, but deleted since) or Refused."""
    why: str = ""
    """Reason why the pod does not run, such as a message of the scheduler or the kubelet."""
    resized: str = ""
    """State of an in-place resize: Proposed, InProgress, Done, Deferred, Infeasible or Unsupported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """Result of a plan: what the operator did for the master's plan, or the master's answer to a user's plan."""

    phase: str = ""
    """Applying or Applied for the master's plan; Applied, Rejected or Superseded for a user's plan."""
    message: str = ""
    made: Mapping[str, int] = field(default_factory=dict)
    """Highest incarnation of each role that the operator has created, for example `worker-0: 1`. No incarnation is
    created twice.
    """
    pods: Mapping[str, PodState] = field(default_factory=dict)
    budget: int | None = None
    """Number of servers that the disruption budget covers."""
    in_place_resize: bool = False
    """True if the cluster can resize running pods."""
    cpu: float | None = None
    """Number of cores of all nodes on which pods of this job may run."""
    memory: int | None = None
    """Bytes of memory of all nodes on which pods of this job may run."""
    node_cpu: float | None = None
    """Number of cores of the largest node on which pods of this job may run."""
    node_memory: int | None = None
    gpus: int | None = None
    """Number of GPUs of all nodes on which pods of this job may run."""
    observed_generation: int = 0
    """Generation of the plan that this status describes."""
    applied_at: str = ""
