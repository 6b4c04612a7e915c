"""Shared state of a master's parts: the record, the journal, the event log, the clock and a change signal.

`apply` runs an event through the state machine and passes the resulting actions to the listeners. While the journal
waits for its disk (`stuck`), no reply leaves. A failed journal fails the job, once; a failed event log never does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from springtide import errors
from springtide.job.core import actions, events
from springtide.job.state import JobState
from springtide.master.core import journal_entries, waiters
from springtide.master.core.journal import Journal, Superseded
from springtide.master.core.progress import ProgressTally
from springtide.master.core.record import JobRecord
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)
Listener = Callable[[list[actions.JobAction]], None]


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
        self._story = story
        self._listeners: list[Listener] = []

    @property
    def state(self) -> JobState:
        return self.record.state

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with the actions of every event that causes some."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def journaled(self, entry: journal_entries.JournalEntry | None) -> Iterator[None]:
        """Journal the entry if the block changes the record, even if the block raises."""
        before = self.record.changes
        try:
            yield
        finally:
            if entry is not None and self.journal is not None and self.record.changes != before:
                try:
                    self.journal.append(journal_entries.encode(entry))
                except errors.SpringtideError as error:
                    self._journal_failed(error)

    async def written(self) -> None:
        """Wait until all entries are in the journal. A superseded master waits forever."""
        try:
            if self.journal is not None:
                await self.journal.committed()
        except errors.SpringtideError as error:
            await self._give_up(error)

    async def written_unless_stuck(self) -> bool:
        """Wait like `written`, but return False without further waiting if the disk is full."""
        try:
            return self.journal is None or await self.journal.tried()
        except errors.SpringtideError as error:
            await self._give_up(error)
            return True

    @property
    def stuck(self) -> str:
        """Return why nothing can be journaled now; empty if it can."""
        return self.journal.stuck if self.journal is not None else ""

    @property
    def disk_trouble(self) -> str:
        """Return what cannot be written now, for people; empty if everything can."""
        return self.stuck or str(self._story.trouble or "")

    def log_event(self, kind: str, **fields: Any) -> None:
        self._story.write(kind, **fields)

    def log_delayed_events(self) -> None:
        """Write events that a full disk delayed."""
        if self._story.trouble is not None:
            self._story.write_rest()

    async def _give_up(self, error: errors.SpringtideError) -> None:
        self._journal_failed(error)
        if isinstance(error, Superseded):
            await asyncio.Event().wait()  # send nothing more: the connection closes, and the new master answers

    def _journal_failed(self, error: errors.SpringtideError) -> None:
        """Exit if another master has taken over, else fail the job."""
        if isinstance(error, Superseded):
            log.warning("%s: this master exits", error)
            self.over.set()
        elif not self.state.phase.over:
            log.error("%s", error)
            self.record.happen(events.MasterFailed(str(error)), self.clock())

    @property
    def samples(self) -> int:
        """Return the samples trained so far: from the ledger, or from workers' reports in a job without leases."""
        book = self.record.book
        return book.samples_trained if book.passes else self.tally.samples

    def apply(self, event: events.JobEvent) -> None:
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

    def _log_action(self, action: actions.JobAction) -> None:
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
