"""Pure. Plans and decisions of planning, each with its reason.

In: policies (`planning.policy.registry`). Next: a master applies a `ShapePlan`; `springtide explain` shows the reasons.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from springtide import errors
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import JobView, PastJob
from springtide.domain.spec.planning_config import PlanningStage


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePlan:
    """A new shape for one job."""

    job: str
    shape: Shape
    reason: str
    gain: float = 0.0
    """Expected gain in samples per second, minus the cost of the change (Eqn 8 of the paper)."""
    cost: float = 0.0
    """Hourly cost of the shape (Eqn 7 of the paper)."""
    throughput: float | None = None
    """Expected samples per second; None if there is no prediction."""
    stage: PlanningStage | None = None
    """Stage that begins when the plan is applied; None keeps the current stage."""

    def __post_init__(self) -> None:
        if not self.reason:
            raise errors.BadInput(f"plan for {self.job}: expected a reason")
        if math.isnan(self.gain) or not 0 <= self.cost < math.inf:
            raise errors.BadInput(f"plan for {self.job}: gain {self.gain:g}, cost {self.cost:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Plans to apply now, with the reason. A decision without plans also has a reason."""

    plans: tuple[ShapePlan, ...] = ()
    why: str
    notes: tuple[str, ...] = ()
    """Additional information, such as the jobs that the plan does not change, or the data that the planner refused."""

    def __post_init__(self) -> None:
        if not self.why:
            raise errors.BadInput("a decision needs a reason")
        given: tuple[object, ...] = self.plans
        for plan in given:
            if not isinstance(plan, ShapePlan):
                raise errors.BadInput(f"decision: {plan!r} among its plans; expected a ShapePlan for each changed job")
        named = [plan.job for plan in self.plans]
        twice = {job for job in named if named.count(job) > 1} if len(set(named)) < len(named) else set()
        if twice:
            raise errors.BadInput(f"decision: two plans for {', '.join(sorted(twice))}; expected one plan for each job")

    def plan_for(self, job: str) -> ShapePlan | None:
        return next((plan for plan in self.plans if plan.job == job), None)


def nothing(why: str, *notes: str) -> Decision:
    return Decision(why=why, notes=notes)


WITHOUT_BRAIN = "planned without the brain"
"""Prefix of the note that explains why a master planned without the brain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Answer of an adviser to one job. The answer may contain no plan."""

    epoch: int
    """Epoch of the view that the advice is for. A master with a newer epoch ignores the advice."""
    why: str
    plan: ShapePlan | None = None
    notes: tuple[str, ...] = ()
    data_cores: float | None = None
    """Cores for all data workers of the job together. None means the free cores that the job's master finds."""

    def __post_init__(self) -> None:
        if not self.why:
            raise errors.BadInput("advice says why")


class Adviser(Protocol):
    """Planner that advises a job and records it at its end."""

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        """Return the change that the job should make, or raise an error of `springtide.errors`."""
        ...

    async def conclude(self, past: PastJob) -> None:
        """Record an ended job, so that similar jobs can learn from it."""
        ...

    async def close(self) -> None: ...
