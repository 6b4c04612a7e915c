"""Writes the journal and the event log, and handles a full disk.

In: changes and events of `master.dispatcher`. Out: entries in `master.core.journal`, and lines of the event log. While
the journal waits for its disk (`stuck`), no reply leaves. A failed journal fails the job, once. A failed event log
never fails the job. A master that another master has replaced exits.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from springtide import errors
from springtide.job.core import events
from springtide.master.core import journal_entries
from springtide.master.core.journal import Journal, Superseded
from springtide.master.core.record import JobRecord
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)


class JournalWriter:
    """The only writer of a master's journal and event log."""

    def __init__(
        self,
        record: JobRecord,
        story: EventLog,
        clock: Callable[[], float],
        journal: Journal | None,
        *,
        leave: Callable[[], None],
    ) -> None:
        self.record, self._story, self._clock, self._journal, self._leave = record, story, clock, journal, leave

    @contextlib.contextmanager
    def kept(self, entry: journal_entries.AnyEntry | None) -> Iterator[None]:
        """Journal the entry if the block changes the record, even if the block raises."""
        before = self.record.changes
        try:
            yield
        finally:
            if entry is not None and self._journal is not None and self.record.changes != before:
                try:
                    self._journal.append(journal_entries.encode(entry))
                except errors.SpringtideError as error:
                    self._break(error)

    async def written(self) -> None:
        """Wait until all entries are in the journal. A superseded master waits forever."""
        try:
            if self._journal is not None:
                await self._journal.committed()
        except errors.SpringtideError as error:
            await self._give_up(error)

    async def written_unless_stuck(self) -> bool:
        """Wait like `written`, but return False at once if the disk is full."""
        try:
            return self._journal is None or await self._journal.tried()
        except errors.SpringtideError as error:
            await self._give_up(error)
            return True

    @property
    def stuck(self) -> str:
        """Return why nothing can be journaled now; empty if it can."""
        return self._journal.stuck if self._journal is not None else ""

    @property
    def trouble(self) -> str:
        """Return what cannot be written now, for people; empty if everything can."""
        return self.stuck or str(self._story.trouble or "")

    def tell(self, kind: str, **fields: Any) -> None:
        self._story.write(kind, **fields)

    def tell_rest(self) -> None:
        """Write events that a full disk delayed."""
        if self._story.trouble is not None:
            self._story.write_rest()

    async def _give_up(self, error: errors.SpringtideError) -> None:
        self._break(error)
        if isinstance(error, Superseded):
            await asyncio.Event().wait()  # send nothing more: the connection closes, and the new master answers

    def _break(self, error: errors.SpringtideError) -> None:
        """Handle a failed journal: exit if superseded, else fail the job."""
        if isinstance(error, Superseded):
            log.warning("%s: so I leave", error)
            self._leave()
        elif not self.record.state.phase.over:
            log.error("%s", error)
            self.record.happen(events.MasterFailed(str(error)), self._clock())
