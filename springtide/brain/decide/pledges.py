"""Pure. What jobs were told to become and have not become yet: counted as if they had, so that no core is given twice.

In: plans that `brain.decide.cluster_state` is about to send. Out: whether there is room for them, for whatever becomes
of all others that are under way. A job holds the larger of what it has and what it was promised, until its own view
shows which.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.plan import ShapePlan
from springtide.domain.plan.view import JobView
from springtide.planning.policy import sanitize

NOTHING = ResourceBudget(cpu=0.0, memory=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """A plan that was sent."""

    plan: ShapePlan
    epoch: int
    """Of the view that it was made for."""
    made_at: float
    until: float
    """A job that shows itself after that and has not become it has refused it, or nobody heard it."""

    def open(self, view: JobView, epoch: int, *, at: float) -> bool:
        """Whether it may still be carried out, now that the job shows itself again.

        A master that asks again with the same epoch has not taken the plan, and will not: it hears no late answers. One
        that has changed since and is something else was hindered.
        """
        if view.shape == self.plan.shape or epoch == self.epoch or at >= self.until:
            return False
        changed = view.last_change_at is not None and view.last_change_at > self.made_at
        return not (changed and view.shape is not None)


def holds(view: JobView, pledge: Pledge | None) -> ResourceBudget:
    has = NOTHING if view.shape is None else ResourceBudget(cpu=view.shape.cpu, memory=view.shape.memory)
    if pledge is None:
        return has
    promised = sanitize.takes(pledge.plan)
    return ResourceBudget(cpu=max(has.cpu, promised.cpu), memory=max(has.memory, promised.memory))


def total(held: Iterable[ResourceBudget]) -> ResourceBudget:
    each = list(held)
    return ResourceBudget(cpu=sum(one.cpu for one in each), memory=sum(one.memory for one in each))


def beside(capacity: ResourceBudget, others: ResourceBudget) -> ResourceBudget:
    return ResourceBudget(cpu=max(0.0, capacity.cpu - others.cpu), memory=max(0.0, capacity.memory - others.memory))


def grows(plan: ShapePlan, view: JobView) -> bool:
    """Whether the plan takes more of anything than the job has."""
    wanted, has = sanitize.takes(plan), holds(view, None)
    return wanted.cpu > has.cpu or wanted.memory > has.memory


def has_room(plan: ShapePlan, view: JobView, others: ResourceBudget, capacity: ResourceBudget) -> bool:
    """Whether the plan can be sent: it takes no more than the job has, or all of them fit beside each other."""
    if not grows(plan, view):
        return True
    has, wanted = holds(view, None), sanitize.takes(plan)
    cpu_fits = wanted.cpu <= has.cpu or sanitize.holds(capacity, wanted.cpu + others.cpu, 0.0)
    memory_fits = wanted.memory <= has.memory or sanitize.holds(capacity, 0.0, wanted.memory + others.memory)
    return cpu_fits and memory_fits
