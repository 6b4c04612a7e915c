"""Pure. Detects when a job needs a decision, names the cause, and picks the policy that the settings assign to it.

Each job has one `Administrator`, which can be rebuilt from the next view. The lookup of a policy tries event and cause
("slow/hot server"), then the event ("slow"), then the brain's default. Next: `brain.decide.cluster_state`.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import MEMORY, FindingKind, JobView

SLOWED = 0.7
"""If the speed of a window is below this share of the speed of earlier windows in the same shape, that is an event (as
in DLRover)."""
ENOUGH = 3  # windows needed for comparison; fewer have no meaningful median


class EventKind(StrEnum):
    """Types of events, the most urgent first."""

    OOM = "oom"
    """Memory has run out or will run out."""
    CREATED = "created"
    SLOW = "slow"
    """The job is slower than it should be."""
    ITERATING = "iterating"
    """The first steps of the job have been measured."""
    PERIODIC = "periodic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A reason to review a job."""

    kind: EventKind
    job: str
    at: float
    why: str


class Administrator:
    """Event detector of one job."""

    def __init__(self, job: str, *, period_s: float) -> None:
        self._job, self._period_s = job, period_s
        self._seen = False
        self._measured = False
        self._raised: dict[EventKind, tuple[object, float]] = {}
        self._last_at = -math.inf

    def shown(self, view: JobView, *, at: float) -> Event | None:
        """Return the most urgent new event. A known problem counts as new again after one period."""
        first, self._seen = not self._seen, True
        measured = any(profile.timing.steps > 0 for profile in view.profiles)
        begun, self._measured = measured and not self._measured, measured
        troubles = sorted({(one.trouble.value, str(one.role), one.why) for one in view.findings})
        memory = [one for one in troubles if one[0] in MEMORY]
        others = [one for one in troubles if one[0] not in MEMORY]
        slowed = slower(view.profiles)
        if memory and self._is_new(EventKind.OOM, [one[:2] for one in memory], at):
            return self._raise(EventKind.OOM, at, _told(memory))
        if view.shape is None and self._is_new(EventKind.CREATED, "no shape", at):
            return self._raise(EventKind.CREATED, at, "it is new" if first else "it still waits for its first shape")
        if others and self._is_new(EventKind.SLOW, [one[:2] for one in others], at):
            return self._raise(EventKind.SLOW, at, _told(others))
        if slowed and self._is_new(EventKind.SLOW, "pace", at):
            return self._raise(EventKind.SLOW, at, slowed)
        if begun and not first:
            return self._raise(EventKind.ITERATING, at, "its first steps have been measured")
        if first or at - self._last_at >= self._period_s:
            why = "seen for the first time" if first else f"{self._period_s:g} s have passed"
            return self._raise(EventKind.PERIODIC, at, why)
        return None

    def next_look(self) -> float:
        return self._last_at + self._period_s

    def _is_new(self, kind: EventKind, what: object, at: float) -> bool:
        before, since = self._raised.get(kind, (None, -math.inf))
        if before == what and at - since < self._period_s:
            return False
        self._raised[kind] = (what, at)
        return True

    def _raise(self, kind: EventKind, at: float, why: str) -> Event:
        self._last_at = at
        return Event(kind=kind, job=self._job, at=at, why=why)


def slower(profiles: tuple[Profile, ...]) -> str:
    """Say how much slower the newest window is than earlier windows in the same shape; empty if it is not slower."""
    if not profiles:
        return ""
    now = profiles[-1]
    before = [one.step_s for one in profiles[:-1] if one.shape == now.shape and 0 < one.step_s < math.inf]
    if len(before) < ENOUGH or not 0 < now.step_s < math.inf:
        return ""
    usual = statistics.median(before)
    if usual >= now.step_s * SLOWED:
        return ""
    return f"a step takes {now.step_s:.3g} s, {usual:.3g} s before in the same shape"


def _told(troubles: list[tuple[str, str, str]]) -> str:
    return "; ".join(f"{trouble} ({role}): {why}" for trouble, role, why in troubles)


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


Optimizer = Callable[[Event, JobView], str]


def created(event: Event, view: JobView) -> str:
    """Return the cause for the event of a new job: a warm start if its features are known, else a cold start."""
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
