"""Pure. What a decision on many jobs says to one of them.

In: a `Decision` of a policy. Out: an `Advice` for one job: its plan, or the reason why it has none. Next: its master.
"""

from collections.abc import Sequence

from springtide.domain.plan.advice import Advice
from springtide.domain.plan.plan import Decision

MOST_NOTES = 20  # of one advice; a cluster's decision may have thousands
PLAN_FOR = "plan for "


class DecisionByJob:
    """A decision, sorted by job once: it may be on thousands of them."""

    def __init__(self, decision: Decision) -> None:
        self.plans = {plan.job: plan for plan in decision.plans}
        self._why = decision.why
        self._own: dict[str, list[str]] = {}
        self._common: list[str] = []
        for note in decision.notes:
            about, mark, rest = note.partition(": ")
            if about.startswith(PLAN_FOR):
                self._own.setdefault(about.removeprefix(PLAN_FOR).removesuffix(" refused"), []).append(note)
            elif mark:
                self._own.setdefault(about, []).append(rest)
            else:
                self._common.append(note)

    def advice(self, job: str, *, epoch: int, notes: Sequence[str] = ()) -> Advice:
        """The part that is the job's own; what is said of others is theirs."""
        own, plan = self._own.get(job, []), self.plans.get(job)
        if plan is not None:
            return Advice(epoch=epoch, plan=plan, why=plan.reason, notes=(*notes, *own, *self._common)[:MOST_NOTES])
        why = own[0] if own else f"it stays as it is: {self._why}"
        return Advice(epoch=epoch, why=why, notes=(*notes, *own[1:], *self._common)[:MOST_NOTES])
