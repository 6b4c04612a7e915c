"""What is compared: a policy, which decides, and mechanisms, which carry out and mend.

In: a policy and its name. Out: a `System`. The policies are the real ones; mechanisms are what the papers say that a
runtime can do: Kubeflow cannot change a job, ES and Optimus change it between initializations, ours while it trains.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from springtide import errors
from springtide.domain.plan.plan import Decision
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.sim.world.parameters import ClusterWorld

Policy = Callable[[ClusterView, PlanningConfig], Decision]


class ServerChange(StrEnum):
    """What a change of servers costs a job."""

    RESTART = "restart"
    """Stop, save to remote storage, prepare, load (000 §2.2)."""
    INITIALIZE = "initialize"
    """Train on while pods start, then build the graph anew (001 §6.3)."""
    LIVE = "live"
    """Train on; a pause through memory (000 §5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What the runtime can do."""

    elastic: bool = True
    """Shapes change, lost pods are replaced; otherwise a lost pod fails the job and the user runs it again."""
    dynamic_shards: bool = True
    """Workers take work as they go; otherwise each has an equal part."""
    servers: ServerChange = ServerChange.LIVE
    relieves: bool = True
    """Hot servers and stragglers are found and relieved."""
    foresees: bool = True
    """Memory needs are forecast (`planning.guards.growth`) and shown to the policy."""

    def pause_s(self, world: ClusterWorld) -> float:
        """How long a job stands still when its servers change."""
        if self.servers is ServerChange.RESTART:
            return world.checkpoint_s + world.prepare_s + world.load_s
        return world.init_s if self.servers is ServerChange.INITIALIZE else world.live_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One contestant."""

    name: str
    policy: Policy
    mechanisms: Mechanisms = field(default_factory=Mechanisms)
    every_s: float = 60.0
    """Between two times that it is asked."""
    again_s: float = 600.0
    """A job with nothing new about it is shown to it that often at most..."""
    rarely: float = 0.25
    """...and again after this share of the time since its last change."""


KUBEFLOW = Mechanisms(elastic=False, dynamic_shards=False, servers=ServerChange.RESTART, relieves=False, foresees=False)
SCHEDULER = Mechanisms(servers=ServerChange.INITIALIZE, relieves=False, foresees=False)
"""ES and Optimus: pods come and go, nothing is mended, memory is not their business."""
THREE_MINUTES_S = 180.0

MECHANISMS = {"static": KUBEFLOW, "es": SCHEDULER, "optimus": SCHEDULER, "optimus_one": SCHEDULER}


def system(name: str, policy: Policy) -> System:
    """A policy by its name: its own mechanisms where the papers say so, otherwise ours."""
    mechanisms = MECHANISMS.get(name, Mechanisms())
    if mechanisms is SCHEDULER:
        return System(
            name=name,
            policy=policy,
            mechanisms=mechanisms,
            every_s=THREE_MINUTES_S,
            again_s=THREE_MINUTES_S,
            rarely=0.0,
        )
    return System(name=name, policy=policy, mechanisms=mechanisms)


def check(decision: object, name: str) -> Decision:
    """A policy may be anyone's: what it returned must be a decision."""
    if not isinstance(decision, Decision):
        raise errors.BadInput(f"policy {name} returned {type(decision).__name__}; wanted a Decision")
    return decision
