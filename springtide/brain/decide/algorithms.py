"""Pure. Names the cause of an event and picks the policy that the settings assign to it.

In: an event of `brain.decide.triggers` and the job's view. Out: a `DecisionRequest`. Next: `brain.decide.cluster_state`
collects the requests of a round, and `brain.service.executor_pool` runs them.

An algorithm is the name of a policy. The lookup tries event and cause ("slow/hot server"), then the event ("slow"). The
brain's default policy applies if neither is configured.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from springtide import errors
from springtide.brain.decide.triggers import Event, EventKind
from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.view import FindingKind, JobView

BUSY = 0.9
"""Share of its CPU above which a server counts as overloaded (DLRover's bound)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A job to decide on, the cause, and the policy to use."""

    job: str
    kind: EventKind
    cause: str
    policy: str
    why: str
    """Observation that triggered the event."""


Optimizer = Callable[[Event, JobView], str]
"""Function that names the cause of an event."""


def created(event: Event, view: JobView) -> str:
    """Return the cause of a new job: a warm start if its features are known, else a cold start."""
    return "new, with features" if view.features else "new"


def iterating(event: Event, view: JobView) -> str:
    return "sampled"


def periodic(event: Event, view: JobView) -> str:
    return str(view.stage)


def slow(event: Event, view: JobView) -> str:
    for trouble in (FindingKind.STRAGGLER, FindingKind.HOT_SERVER, FindingKind.SLOW_SERVER):
        if any(one.trouble is trouble for one in view.findings):
            return str(trouble)
    for kind in (RoleKind.SERVER, RoleKind.WORKER):
        if _busy(view, kind):
            return f"too little {kind} CPU"
    return "unknown"


def out_of_memory(event: Event, view: JobView) -> str:
    found = [one for one in view.findings if one.trouble in (FindingKind.OOM, FindingKind.MEMORY)]
    ran_out = [one for one in found if one.trouble is FindingKind.OOM]
    return f"{(ran_out or found)[0].role.kind} memory" if found else "memory"


OPTIMIZERS: dict[EventKind, Optimizer] = {
    EventKind.CREATED: created,
    EventKind.ITERATING: iterating,
    EventKind.PERIODIC: periodic,
    EventKind.SLOW: slow,
    EventKind.OOM: out_of_memory,
}


def order(event: Event, view: JobView, algorithms: Mapping[str, str], *, otherwise: str) -> DecisionRequest:
    """Return the cause of an event and the policy for it."""
    cause = OPTIMIZERS[event.kind](event, view)
    policy = algorithms.get(f"{event.kind}/{cause}") or algorithms.get(event.kind) or otherwise
    return DecisionRequest(job=event.job, kind=event.kind, cause=cause, policy=policy, why=event.why)


def parse(pairs: Iterable[str]) -> dict[str, str]:
    """Parse "EVENT=POLICY" or "EVENT/CAUSE=POLICY" into policies by event."""
    found = {}
    for pair in pairs:
        event, mark, policy = pair.partition("=")
        kind, _, cause = event.strip().partition("/")
        if not mark or not policy.strip():
            raise errors.BadInput(f"{pair!r}: wanted EVENT=POLICY, such as oom=dlrover or 'slow/hot server=dlrover'")
        if kind not in list(EventKind):
            raise errors.UnknownName("event", kind, [str(known) for known in EventKind])
        found[f"{kind}/{cause}" if cause else kind] = policy.strip()
    return found


def _busy(view: JobView, kind: RoleKind) -> bool:
    shares = [use.cpu_used / use.cpu for use in view.used_by(kind) if use.cpu > 0]
    return bool(shares) and sum(shares) / len(shares) >= BUSY
