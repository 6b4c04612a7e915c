"""What a desk lets its parts do: look at the record, make things happen, keep and tell them, wake who waits.

In: `master.desk`. Next: `master.rounds` (checkpoints) and `master.rollout` (migration) go through them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from springtide.job import events
from springtide.master import entries, meetings
from springtide.master.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Of one desk."""

    record: Record
    changed: meetings.Turnstile
    happen: Callable[[events.Event], None]
    """Something for the state machine."""
    kept: Callable[[entries.AnyEntry | None], AbstractContextManager[None]]
    """A change that must survive."""
    tell: Callable[..., None]
    """A line of the story."""
