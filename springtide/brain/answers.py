"""Pure. What a decision on many jobs says to one of them.

In: a `Decision` of a policy. Out: an `Advice` for one job: its plan, or the reason why it has none. Next: its master.
"""

from collections.abc import Sequence

from springtide.domain.advice import Advice
from springtide.domain.plan import Decision

MOST_NOTES = 20  # of one advice; a cluster's decision may have thousands


def advice(decision: Decision, job: str, *, epoch: int, notes: Sequence[str] = ()) -> Advice:
    """The part of a decision that is the job's own."""
    own, others = told(decision, job)
    plan = decision.plan_for(job)
    if plan is not None:
        return Advice(epoch=epoch, plan=plan, why=plan.reason, notes=(*notes, *own, *others)[:MOST_NOTES])
    why = own[0] if own else decision.why
    return Advice(epoch=epoch, why=why, notes=(*notes, *own[1:], *others)[:MOST_NOTES])


def told(decision: Decision, job: str) -> tuple[list[str], list[str]]:
    """Notes of a decision on this job, without its name, and those on none; what is said of others is theirs."""
    own: list[str] = []
    common: list[str] = []
    for note in decision.notes:
        about, mark, rest = note.partition(": ")
        if mark and about == job:
            own.append(rest)
        elif note.startswith((f"plan for {job} ", f"plan for {job}:")):
            own.append(note)
        elif not mark and not note.startswith("plan for "):
            common.append(note)
    return own, common
