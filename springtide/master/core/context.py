"""Shared state of a master's parts: the record, the journal, the event log, the clock and a change signal.

In: `master.main` makes one context and passes it to every part. Out: `apply` runs an event through the state machine
and passes the resulting actions to the listeners. `journaled` journals a change of the record. `log_event` writes to
the event log.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from springtide.job.core import actions, events
from springtide.job.state import JobState
from springtide.master.core import journal_entries, waiters
from springtide.master.core.journal import Journal
from springtide.master.core.journal_writer import JournalWriter
from springtide.master.core.progress import ProgressTally
from springtide.master.core.record import JobRecord
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)
Listener = Callable[[list[actions.Action]], None]


class MasterContext:
    """The shared state of one master."""

    def __init__(
        self,
        record: JobRecord,
        story: EventLog,
        clock: Callable[[], float],
        journal: Journal | None = None,
        *,
        term: int = 1,
    ) -> None:
        self.record, self.clock, self.journal, self.term = record, clock, journal, term
        self.folder = story.path.parent
        self.changed = waiters.ChangeSignal()
        self.over = asyncio.Event()
        """Event that is set when the agent shuts the master down or disappears."""
        self.tally = ProgressTally()
        self.writer = JournalWriter(record, story, clock, journal, leave=self.over.set)
        self._listeners: list[Listener] = []

    @property
    def state(self) -> JobState:
        return self.record.state

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with the actions of every event that causes some."""
        self._listeners.append(listener)

    def journaled(self, entry: journal_entries.AnyEntry | None) -> AbstractContextManager[None]:
        """Journal `entry` if the block changes the record."""
        return self.writer.kept(entry)

    def log_event(self, kind: str, **fields: Any) -> None:
        self.writer.tell(kind, **fields)

    @property
    def samples(self) -> int:
        """Return the samples trained so far: from the ledger, or from workers' reports in a job without leases."""
        book = self.record.book
        return book.samples_trained if book.passes else self.tally.samples

    def apply(self, event: events.Event) -> None:
        """Run an event through the state machine, journal it, and log and distribute the actions."""
        state, before, now = self.state, self.state.phase, self.clock()
        with self.journaled(None if isinstance(event, events.RoleAlive) else journal_entries.event_entry(event, now)):
            done = self.record.happen(event, now)
        for action in done:
            self._log_action(action)
        if done:
            self.changed.turn()
            for listener in self._listeners:
                listener(done)
        if state.phase is not before:
            self.changed.turn()
            self.log_event("phase", phase=state.phase, why=state.why, samples=self.samples)

    def _log_action(self, action: actions.Action) -> None:
        match action:
            case actions.PlaceSlots(addresses):
                self.log_event("placed", epoch=1, servers=list(addresses))
            case actions.ServerLost(role, incarnation, why):
                self.log_event("lost", role=str(role), incarnation=incarnation, why=why)
            case actions.FenceWorker(role, incarnation, why):
                self.log_event("fenced", role=str(role), incarnation=incarnation, why=why)
            case actions.ServerLeft(role):
                self.log_event("left", role=str(role))
            case actions.LogDecision(what, why, logged):
                log.info("%s: %s", what, why)
                if not logged:
                    self.log_event("decision", what=what, why=why)
            case actions.PlanCompleted(shape, why):
                self.log_event("plan", outcome="done", shape=shape, why=why)
            case actions.RollBack(anew):
                log.info("all begin anew" if anew else "all go back to the last checkpoint")
            case actions.DrainWorkers(why):
                log.info("draining: %s", why)
            case actions.EndJob(phase, why, blame):
                log.info("%s (%s): %s", phase, blame, why)
            case actions.ServerReturned(role, incarnation, address):
                log.info("%s is back as incarnation %d at %s", role, incarnation, address)
