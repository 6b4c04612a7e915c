"""Runs the real master service over a journal in memory, and replaces a killed master.

In: requests of members, through `master_connection`. Out: replies. Every tick checks the invariants of the job's state
and ledger. A killed master loses unwritten journal entries and pending requests. The next master rebuilds its record
from the journal, as a real master does.
"""

import asyncio
import pathlib
from collections.abc import Callable
from typing import Any

from springtide import errors
from springtide.checkpoint.transfer.claims import RunClaim
from springtide.domain.plan.plan import Adviser
from springtide.domain.spec.job_spec import JobSpec
from springtide.master.autoscale.loop import AdviserSetup
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.core.journal import Journal
from springtide.master.core.record import JobRecord
from springtide.master.dispatcher import MasterService
from springtide.master.main import build_service, rebuild
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport.listener import Peer
from springtide.telemetry.events import EventLog
from tests.virtual_jobs import virtual_loop

TICKS_A_BEAT = 2
SNAPSHOT_EVERY = 2000  # journal entries between snapshots: replay takes time


class Pages:
    """Durable contents of a journal, shared by successive masters."""

    def __init__(self) -> None:
        self.term = 0
        self.snapshot: bytes | None = None
        self.entries: list[bytes] = []


class PagedJournal(Journal):
    """A real journal without a file. Entries become durable at the end of a turn of the event loop."""

    def __init__(self, pages: Pages, *, term: int) -> None:
        self.term, self._pages, self.began = term, pages, 0.0
        self._waiting, self._committed, self._tried, self._failed, self._stuck = [], None, None, None, None
        self.since_snapshot = len(pages.entries)
        pages.term = term

    def read(self) -> tuple[bytes | None, list[bytes]]:
        return self._pages.snapshot, list(self._pages.entries)

    def save(self, snapshot: bytes) -> None:
        self._pages.snapshot, self._pages.entries = snapshot, []
        self.since_snapshot = 0

    def close(self) -> None: ...

    def die(self) -> None:
        """Write nothing more. Requests that wait for entries, or make new ones, end."""
        self._failed = asyncio.CancelledError()  # type: ignore[assignment]
        for waited in (self._committed, self._tried):
            if waited is not None:
                waited.cancel()

    def _flush(self) -> None:
        told, self._committed = self._committed, None
        tried, self._tried = self._tried, None
        waiting, self._waiting = self._waiting, []
        if told is None or tried is None:
            return
        if self._pages.term != self.term:
            return  # a dead master
        self._pages.entries += [bytes(entry) for entry in waiting]
        self.since_snapshot += len(waiting)
        told.set_result(None)
        tried.set_result(True)


class MemoryEventLog(EventLog):
    """An event log in memory, in virtual time."""

    def __init__(
        self, folder: pathlib.Path, clock: Callable[[], float], keep: Callable[[str], bool] = lambda kind: True
    ) -> None:
        self.path = folder / "events.jsonl"  # never written, but other files are beside it
        self.lines: list[tuple[float, str, dict[str, Any]]] = []
        self._clock, self._keep, self.trouble = clock, keep, None

    def write(self, kind: str, **fields: Any) -> None:
        if self._keep(kind):
            self.lines.append((self._clock(), kind, fields))

    def close(self) -> None: ...


class Masters:
    """The successive masters of one job."""

    def __init__(
        self,
        spec: JobSpec,
        folder: pathlib.Path,
        story: MemoryEventLog,
        check: Callable[[JobRecord], None],
        adviser: Adviser | None = None,
        run: str = "simulated",
    ) -> None:
        self._run = run
        self.spec, self._folder, self.story, self._check, self._adviser = spec, folder, story, check, adviser
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._pages = Pages()
        self._asking: dict[asyncio.Task[Any], None] = {}
        """Tasks of members that wait for a reply of the current master."""
        self._ticking: asyncio.Task[None] | None = None
        self._journal: PagedJournal | None = None
        self._listens = asyncio.Event()
        self.term = 0
        self.desk: MasterService | None = None
        """Service of the current master; None without a master."""
        self.broken: BaseException | None = None
        self.answered = 0
        """Number of requests that were answered."""
        """Error that would also crash a real master; the simulation raises it."""

    def clock(self) -> float:
        return self._loop.time() - self._began

    @property
    def record(self) -> JobRecord:
        assert self.desk is not None
        return self.desk.record

    def start(self) -> None:
        self.term += 1
        journal = self._journal = PagedJournal(self._pages, term=self.term)
        snapshot, kept = journal.read()
        record = rebuild(self.spec, snapshot, kept)
        claim = RunClaim(run=self._run, job=self.spec.name)
        saving = CheckpointStore(self.spec.checkpoints, self._folder, claim, term=self.term)
        advised = None
        if (adviser := self._adviser) is not None:
            advised = AdviserSetup(make=lambda: adviser, name=self.spec.name, wall=self._loop.time)
        self.desk = build_service(
            record, self.story, self.clock, journal, self.term, saving, advised, away_s=self.spec.heartbeat_s
        )
        if snapshot or kept:
            self.desk.take_over()
        else:
            self.desk.parts.checkpoints.resume()
        self._ticking = self._loop.create_task(self._tick(self.desk, journal))
        self._listens.set()

    def kill(self) -> None:
        """Kill the master at once."""
        if self.desk is None:
            return
        self._pages.term = -self.term
        self._listens.clear()
        self.desk = None
        assert self._ticking is not None and self._journal is not None
        self._ticking.cancel()
        self._journal.die()
        asking, self._asking = self._asking, {}
        for task in asking:
            task.cancel()

    async def present(self) -> int:
        await self._listens.wait()
        return self.term

    async def ask(self, peer: Peer, request: Request) -> Reply:
        """Return the master's reply; MasterUnreachable if the master is killed before it replies."""
        desk, task = self.desk, asyncio.current_task()
        if desk is None:
            raise errors.MasterUnreachable("there is no master")
        assert task is not None
        self._asking[task] = None
        try:
            reply = await desk.handle(peer, request)
        except asyncio.CancelledError:
            if desk is not self.desk and not task.uncancel():  # `kill` has cancelled the request, and nothing else has
                raise errors.MasterUnreachable("the master is gone") from None
            raise
        except errors.SpringtideError:
            raise
        except BaseException as error:
            self.broken = self.broken or error
            raise
        finally:
            self._asking.pop(task, None)
        self.answered += 1
        return reply

    async def _tick(self, desk: MasterService, journal: PagedJournal) -> None:
        try:
            while True:
                await virtual_loop.sleep(self.spec.heartbeat_s / TICKS_A_BEAT)
                desk.tick()
                self._check(desk.record)
                if journal.since_snapshot >= SNAPSHOT_EVERY and journal.idle:
                    journal.save(desk.record.to_bytes())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.broken = self.broken or error
