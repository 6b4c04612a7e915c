"""What a desk lets its parts do: look at the record, make things happen, keep and tell them, wake who waits.

In: `master.dispatcher`. Next: `master.checkpoint.schedule` (checkpoints) and `master.servers.migration` (migration) go
through them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from springtide.job.core import events
from springtide.master.core import journal_entries, waiters
from springtide.master.core.record import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterContext:
    """Of one desk."""

    record: JobRecord
    changed: waiters.ChangeSignal
    happen: Callable[[events.Event], None]
    """Something for the state machine."""
    kept: Callable[[journal_entries.AnyEntry | None], AbstractContextManager[None]]
    """A change that must survive."""
    tell: Callable[..., None]
    """A line of the story."""
