"""Pure. What a planner says to one job that has shown itself, and who may say it.

In: `master.autoscale.loop` shows its job to an `Adviser`: the brain in its own process, or one that serves many
masters. Next: the master checks the plan against the job as it is by then, and carries it out or says why not.
"""

from dataclasses import dataclass
from typing import Protocol

from springtide import errors
from springtide.domain.plan.plan import ShapePlan
from springtide.domain.plan.view import JobView, PastJob

WITHOUT_BRAIN = "planned without the brain"
"""How a note begins that says why a job planned by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One answer; no plan is an answer too."""

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
    """Plans for a job, and remembers it."""

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        """What the job should change; whoever cannot say so raises one of `springtide.errors`."""
        ...

    async def conclude(self, past: PastJob) -> None:
        """The job is over: remember it for those like it."""
        ...

    async def close(self) -> None: ...
