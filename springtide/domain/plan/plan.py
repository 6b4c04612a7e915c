"""Pure. Plans and decisions of planning, each with its reason.

In: policies (`planning.policy.registry`). Next: a master applies a `ShapePlan`; `springtide explain` shows the reasons.
"""

import math
from dataclasses import dataclass
from typing import NoReturn, Protocol

from springtide import errors
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import JobView, PastJob
from springtide.domain.spec.planning_config import PlanningStage


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePlan:
    """New shape for one job."""

    job: str
    shape: Shape
    reason: str
    gain: float = 0.0
    """Eqn 8: samples a second that it is expected to bring, less what the change itself costs."""
    cost: float = 0.0
    """Eqn 7: what the shape costs an hour."""
    throughput: float | None = None
    """Samples a second that are expected; None: not foretold."""
    stage: PlanningStage | None = None
    """The stage that begins when it is carried out; None: the one it has."""
    extra_workers: int = 0
    """Workers beside those of the shape: of low priority, beyond the job's quota, taken away when others need them."""
    server_cpus: tuple[tuple[int, float], ...] = ()
    """Servers by rank whose cores differ from the shape's."""

    def __post_init__(self) -> None:
        if not self.reason:
            raise errors.BadInput(f"plan for {self.job}: it says no reason")
        if math.isnan(self.gain) or not 0 <= self.cost < math.inf or self.extra_workers < 0:
            raise errors.BadInput(
                f"plan for {self.job}: gain {self.gain:g}, cost {self.cost:g}, {self.extra_workers} extra workers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Plans to apply now, with the reason. A decision without plans also has a reason."""

    plans: tuple[ShapePlan, ...] = ()
    why: str
    notes: tuple[str, ...] = ()
    """What else there is to know: of jobs that were left alone, data that was refused."""

    def __post_init__(self) -> None:
        if not self.why:
            raise errors.BadInput("a decision says why")
        named = [plan.job if isinstance(plan, ShapePlan) else _no_plan(plan) for plan in self.plans]
        twice = {job for job in named if named.count(job) > 1} if len(set(named)) < len(named) else set()
        if twice:
            raise errors.BadInput(f"decision: two plans for {', '.join(sorted(twice))}; wanted one a job")

    def plan_for(self, job: str) -> ShapePlan | None:
        return next((plan for plan in self.plans if plan.job == job), None)


def _no_plan(what: object) -> NoReturn:
    raise errors.BadInput(f"decision: {what!r} among its plans; wanted a ShapePlan for each job that changes")


def nothing(why: str, *notes: str) -> Decision:
    return Decision(why=why, notes=notes)


WITHOUT_BRAIN = "planned without the brain"
"""How a note begins that says why a job planned by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Answer of an adviser to one job. It can be without a plan."""

    epoch: int
    """Of the view that it was made for: a master that has changed since takes no notice of it."""
    why: str
    plan: ShapePlan | None = None
    notes: tuple[str, ...] = ()
    data_cores: float | None = None
    """Cores that its data workers may have, all together; None: whatever its master finds free."""

    def __post_init__(self) -> None:
        if not self.why:
            raise errors.BadInput("advice says why")


class Adviser(Protocol):
    """Planner that advises a job and remembers it when it has ended."""

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        """What the job should change; whoever cannot say so raises one of `springtide.errors`."""
        ...

    async def conclude(self, past: PastJob) -> None:
        """The job is over: remember it for those like it."""
        ...

    async def close(self) -> None: ...
