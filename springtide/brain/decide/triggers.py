"""Pure. Detects when a job needs a decision, names the cause, and picks the policy that the settings assign to it.

The lookup of a policy tries the event with its cause ("slow/straggler"), then the event alone ("slow"), then the
brain's default.
Next: `brain.decide.cluster_state`.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import MEMORY, FindingKind, JobView

SLOWED = 0.7
"""An event occurs if the speed in a measurement window falls below this share of the speed in earlier windows of the
same shape (as in DLRover).
"""
ENOUGH = 3  # number of windows needed for a comparison, because the median of fewer windows is unreliable


class EventKind(StrEnum):
    """Types of events, the most urgent first."""

    OOM = "oom"
    """Memory has run out or will run out."""
    CREATED = "created"
    SLOW = "slow"
    """The job is slower than expected."""
    ITERATING = "iterating"
    """The first steps of the job have been measured."""
    PERIODIC = "periodic"


class Event(NamedTuple):
    """A reason to review a job."""

    kind: EventKind
    why: str


class Administrator:
    """Event detector of one job. The detector can be rebuilt from the job's next view."""

    def __init__(self, *, period_s: float) -> None:
        self._period_s = period_s
        self._seen = False
        self._measured = False
        self._raised: dict[EventKind, tuple[object, float]] = {}
        self._last_at = -math.inf

    def observe(self, view: JobView, *, at: float) -> Event | None:
        """Return the most urgent new event. A problem that persists counts as new again after one period."""
        first, self._seen = not self._seen, True
        measured = any(profile.timing.steps > 0 for profile in view.profiles)
        begun, self._measured = measured and not self._measured, measured
        event = next((event for event, what in _problems(view, first) if self._is_new(event.kind, what, at)), None)
        if event is None and begun and not first:
            event = Event(EventKind.ITERATING, "its first steps have been measured")
        if event is None and (first or at >= self.next_look()):
            why = "seen for the first time" if first else f"{self._period_s:g} s have passed"
            event = Event(EventKind.PERIODIC, why)
        self._last_at = self._last_at if event is None else at
        return event

    def next_look(self) -> float:
        return self._last_at + self._period_s

    def _is_new(self, kind: EventKind, what: object, at: float) -> bool:
        before, since = self._raised.get(kind, (None, -math.inf))
        if before == what and at - since < self._period_s:
            return False
        self._raised[kind] = (what, at)
        return True


def _problems(view: JobView, first: bool) -> Iterator[tuple[Event, object]]:
    """Return the problems of a job with an identifier for each, the most urgent first."""
    troubles = sorted({(finding.trouble.value, str(finding.role), finding.why) for finding in view.findings})
    memory = [trouble for trouble in troubles if trouble[0] in MEMORY]
    others = [trouble for trouble in troubles if trouble[0] not in MEMORY]
    if memory:
        yield Event(EventKind.OOM, _joined(memory)), [entry[:2] for entry in memory]
    if view.shape is None:
        yield Event(EventKind.CREATED, "it is new" if first else "the job still waits for its first shape"), "no shape"
    if others:
        yield Event(EventKind.SLOW, _joined(others)), [entry[:2] for entry in others]
    if slowed := slower(view.profiles):
        yield Event(EventKind.SLOW, slowed), "pace"


def slower(profiles: tuple[Profile, ...]) -> str:
    """Say how much slower the newest window is than earlier windows in the same shape; empty if the newest window is
    not slower."""
    if not profiles:
        return ""
    now = profiles[-1]
    before = [
        profile.step_s for profile in profiles[:-1] if profile.shape == now.shape and 0 < profile.step_s < math.inf
    ]
    if len(before) < ENOUGH or not 0 < now.step_s < math.inf:
        return ""
    usual = statistics.median(before)
    if usual >= now.step_s * SLOWED:
        return ""
    return f"a step takes {now.step_s:.3g} s, but took {usual:.3g} s before in the same shape"


def _joined(troubles: list[tuple[str, str, str]]) -> str:
    return "; ".join(f"{trouble} ({role}): {why}" for trouble, role, why in troubles)


BUSY = 0.9
"""A server counts as overloaded above this share of its CPU (DLRover's bound)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A job to decide on, the cause, and the policy to use."""

    kind: EventKind
    cause: str
    policy: str
    why: str


def request(event: Event, view: JobView, algorithms: Mapping[str, str], *, otherwise: str) -> DecisionRequest:
    cause = _cause(event.kind, view)
    policy = algorithms.get(f"{event.kind}/{cause}") or algorithms.get(event.kind) or otherwise
    return DecisionRequest(kind=event.kind, cause=cause, policy=policy, why=event.why)


def _cause(kind: EventKind, view: JobView) -> str:
    match kind:
        case EventKind.CREATED:
            return "new, with features" if view.identity.features else "new"
        case EventKind.ITERATING:
            return "sampled"
        case EventKind.PERIODIC:
            return str(view.stage)
        case EventKind.OOM:
            found = [finding for trouble in MEMORY for finding in view.findings if finding.trouble is trouble]
            return f"{found[0].role.kind} memory" if found else "memory"
        case EventKind.SLOW:
            return _cause_of_slowness(view)


def _cause_of_slowness(view: JobView) -> str:
    for trouble in (FindingKind.STRAGGLER, FindingKind.SLOW_SERVER):
        if any(finding.trouble is trouble for finding in view.findings):
            return str(trouble)
    for kind in (RoleKind.SERVER, RoleKind.WORKER):
        shares = [use.cpu_used / use.cpu for use in view.used_by(kind) if use.cpu > 0]
        if shares and sum(shares) / len(shares) >= BUSY:
            return f"too little {kind} CPU"
    return "unknown"


def checked(policies: Mapping[str, str]) -> Mapping[str, str]:
    """Return `policies` (by event, or by event and cause) after checking that all events are known."""
    for name in policies:
        kind = name.partition("/")[0]
        if kind not in list(EventKind):
            raise errors.UnknownName("event", kind, [str(known) for known in EventKind])
    return policies
