"""Shared state of a master's parts: the record, the journal, the event log, the clock and a change signal.

`apply` runs an event through the state machine and passes the resulting actions to the listeners. While the journal
waits for its disk (`stuck`), the master sends no reply. A journal that fails makes the job fail, once. An event log
that fails has no effect.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import msgspec

from springtide import errors
from springtide.job.core import actions, events
from springtide.job.state import JobState
from springtide.master.core.journal import Journal, Superseded
from springtide.master.core.progress import ProgressTally
from springtide.master.core.record import JobRecord, encode_call
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)
_NUMBERS = re.compile(r"\d[\d,.:]*")
P = ParamSpec("P")
R = TypeVar("R")
Listener = Callable[[list[actions.JobAction]], None]


class ChangeSignal:
    """Wakes tasks that wait for a condition."""

    def __init__(self) -> None:
        self._turned = asyncio.Event()

    def wake_all(self) -> None:
        """Wake all waiting tasks, so that they check their conditions again."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def until(self, true: Callable[[], bool], *, at_most_s: float | None = None) -> None:
        """Wait until `true()` returns True, but at most for `at_most_s` seconds. The check runs now and after every
        `wake_all()`.
        """
        if true():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._turned.wait()
                while not true():
                    await self._turned.wait()


def without_numbers(text: str) -> str:
    return _NUMBERS.sub("#", text)


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
        self.changed = ChangeSignal()
        self.over = asyncio.Event()
        """Event that is set when the agent shuts the master down or disappears."""
        self.tally = ProgressTally()
        self._story = story
        self._listeners: list[Listener] = []
        self._last_news: dict[str, str] = {}

    @property
    def state(self) -> JobState:
        return self.record.state

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def journaled(self, change: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call a method of the record. If the call changes the record, journal the call, even if it raises."""
        before = self.record.changes
        try:
            return change(*arguments, **named)
        finally:
            if self.journal is not None and self.record.changes != before:
                try:
                    self.journal.append(encode_call(change, arguments, named))
                except errors.SpringtideError as error:
                    self._journal_failed(error)

    async def written(self) -> None:
        """Wait until all entries are in the journal. In a master that another master has replaced, this waits
        forever."""
        try:
            if self.journal is not None:
                await self.journal.committed()
        except errors.SpringtideError as error:
            await self._give_up(error)

    async def written_unless_stuck(self) -> bool:
        """Wait like `written`, but stop waiting and return False if the disk is full."""
        try:
            return self.journal is None or await self.journal.flushed_or_full()
        except errors.SpringtideError as error:
            await self._give_up(error)
            return True

    @property
    def stuck(self) -> str:
        return self.journal.stuck if self.journal is not None else ""

    @property
    def disk_trouble(self) -> str:
        return self.stuck or str(self._story.trouble or "")

    def store(self, key: str, value: object) -> None:
        """Store a value in the record, so that a master that takes over finds the value."""
        self.journaled(self.record.shared.share, key, msgspec.msgpack.encode(value))

    def log_event(self, kind: str, **fields: Any) -> None:
        self._story.write(kind, **fields)

    def is_news(self, topic: str, text: str) -> bool:
        """Return True if a text differs from the previous text on the same topic in more than its numbers."""
        before, self._last_news[topic] = self._last_news.get(topic, ""), without_numbers(text)
        return self._last_news[topic] != before

    def log_delayed_events(self) -> None:
        if self._story.trouble is not None:
            self._story.write_rest()

    async def _give_up(self, error: errors.SpringtideError) -> None:
        self._journal_failed(error)
        if isinstance(error, Superseded):
            await asyncio.Event().wait()  # never reply: the connection closes, and the new master answers the request

    def _journal_failed(self, error: errors.SpringtideError) -> None:
        """Exit if another master has taken over. Otherwise fail the job."""
        if isinstance(error, Superseded):
            log.warning("%s: this master exits", error)
            self.over.set()
        elif not self.state.phase.over:
            log.error("%s", error)
            self.record.apply(events.MasterFailed(str(error)), self.clock())

    @property
    def samples(self) -> int:
        """Return the number of samples trained so far: from the ledger, or from workers' reports in a job without
        leases."""
        book = self.record.book
        return book.samples_trained if book.passes else self.tally.samples

    def apply(self, event: events.JobEvent) -> None:
        """Run an event through the state machine, journal it, and log and distribute the actions."""
        state, before, now = self.state, self.state.phase, self.clock()
        done = self.journaled(self.record.apply, event, now)
        for action in done:
            self._log_action(action)
        if done:
            self.changed.wake_all()
            for listener in self._listeners:
                listener(done)
        if state.phase is not before:
            self.changed.wake_all()
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
                if anew:
                    self.tally.restart()
                log.info("the job restarts from the beginning" if anew else "the job rolls back to the last checkpoint")
            case actions.DrainWorkers(why):
                log.info("draining: %s", why)
            case actions.EndJob(phase, why, blame):
                log.info("%s (%s): %s", phase, blame, why)
            case actions.ServerReturned(role, incarnation, address):
                log.info("%s is back as incarnation %d at %s", role, incarnation, address)
