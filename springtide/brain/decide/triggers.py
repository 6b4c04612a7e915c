"""Pure. Detects when a job needs a decision; each job has one `Administrator`.

In: the job's views. Out: the most urgent typed `Event`, or None if nothing is new. Next: `brain.decide.algorithms`
handles that type of event. An administrator lives as long as its job. It can be rebuilt from the next view.
"""

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum

from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import MEMORY, JobView

SLOWED = 0.7
"""A window below this share of the speed of earlier windows in the same shape is an event. DLRover's guards use a
similar share.
"""
ENOUGH = 3  # windows needed for comparison; fewer have no meaningful median


class EventKind(StrEnum):
    """Types of events, the most urgent first."""

    OOM = "oom"
    """Memory has run out or will run out."""
    CREATED = "created"
    """The job is new and has no shape."""
    SLOW = "slow"
    """The job is slower than it should be."""
    ITERATING = "iterating"
    """The first steps of the job have been measured."""
    PERIODIC = "periodic"
    """The review period has passed."""


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
