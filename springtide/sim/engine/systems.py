"""Systems to compare: a policy that decides, and mechanisms that carry out plans and repair faults.

In: a policy and its name. Out: a `System`. The policies are real code. The mechanisms follow the papers: Kubeflow
cannot change a job, ES and Optimus re-initialize it, and Springtide changes it while it trains.
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
    """Cost of a change of servers."""

    RESTART = "restart"
    """Stop, save to remote storage, prepare, load (000 §2.2)."""
    INITIALIZE = "initialize"
    """Train while the pods start, then rebuild the graph (001 §6.3)."""
    LIVE = "live"
    """Train on, with a short pause for a copy through memory (000 §5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """Abilities of a runtime."""

    elastic: bool = True
    """The runtime changes shapes and replaces lost pods. Otherwise a lost pod fails the job, and the user runs it
    again.
    """
    dynamic_shards: bool = True
    """Workers lease shards as they go. Otherwise each worker has an equal part of the data."""
    servers: ServerChange = ServerChange.LIVE
    relieves: bool = True
    """The runtime detects and relieves hot servers and stragglers."""
    foresees: bool = True
    """The runtime forecasts memory needs (`planning.guards.growth`) and shows them to the policy."""

    def pause_s(self, world: ClusterWorld) -> float:
        """Return the seconds that a change of servers pauses a job."""
        if self.servers is ServerChange.RESTART:
            return world.checkpoint_s + world.prepare_s + world.load_s
        return world.init_s if self.servers is ServerChange.INITIALIZE else world.live_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A policy with its mechanisms and intervals."""

    name: str
    policy: Policy
    mechanisms: Mechanisms = field(default_factory=Mechanisms)
    every_s: float = 60.0
    """Seconds between two calls of the policy."""
    again_s: float = 600.0
    """Minimum seconds until the policy sees a job without news again."""
    rarely: float = 0.25
    """Minimum wait of a job without news, as a share of the time since its last change."""


KUBEFLOW = Mechanisms(elastic=False, dynamic_shards=False, servers=ServerChange.RESTART, relieves=False, foresees=False)
SCHEDULER = Mechanisms(servers=ServerChange.INITIALIZE, relieves=False, foresees=False)
"""Mechanisms of ES and Optimus: pods come and go, without repair of slow pods and without memory forecasts."""
THREE_MINUTES_S = 180.0

MECHANISMS = {"static": KUBEFLOW, "es": SCHEDULER, "optimus": SCHEDULER, "optimus_one": SCHEDULER}


def system(name: str, policy: Policy) -> System:
    """Return the system of a policy: with the mechanisms of its paper if known, else with those of Springtide."""
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
    """Raise unless the policy returned a `Decision`; third-party policies may return anything."""
    if not isinstance(decision, Decision):
        raise errors.BadInput(f"policy {name} returned {type(decision).__name__}; wanted a Decision")
    return decision
