"""Brain service: collects requests of masters into rounds and answers each round with one joint decision.

The first request starts a round. The round waits a moment for further requests. The service writes promises to the
database before it sends them, so that a restarted brain still knows them. Next: `brain.decide.cluster_state` (what to
decide), `brain.service.executor_pool` (runs policies), `brain.store.store` (persistence).
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from springtide import errors
from springtide.brain.decide import cluster_state
from springtide.brain.decide.cluster_state import BrainRules, ClusterState, LiveJobView, PolicyTask
from springtide.brain.service import messages
from springtide.brain.service.executor_pool import ExecutorPool, PolicyQuery
from springtide.brain.store import rows
from springtide.brain.store.store import BrainStore, StoredHistory
from springtide.domain.plan.plan import Advice
from springtide.rpc.messages.messages import Ok
from springtide.rpc.transport.listener import Peer

log = logging.getLogger(__name__)
T = TypeVar("T")

GATHER_S = 1.0
"""Seconds that a round collects further requests after the first."""
KEEP_S = 10.0
"""Seconds between two writes of a live job to the database, if the job gets no new promise."""
WATCH_S = 1.0
"""Seconds between two checks that this brain still has its database lock, if standbys wait for the lock."""
READ_S = 60.0
"""Seconds between two reads of the history if no job ended."""


@dataclass(slots=True)
class PastJobs:
    """The history that rounds use, and the time at which it was read."""

    history: StoredHistory = field(default_factory=StoredHistory)
    read_at: float = float("-inf")
    total: int = 0


@dataclass(slots=True)
class RoundCounts:
    """Requests and rounds so far."""

    consults: int = 0
    decisions: int = 0
    decision_s: float = 0.0


class BrainService:
    """One brain. Use the service within one event loop. Database calls run in threads, one at a time."""

    def __init__(self, rules: BrainRules, store: BrainStore, pool: ExecutorPool, *, strict: bool = False) -> None:
        """With `strict`, standbys wait to take over, so a promise is valid only after it is written to the database."""
        self.address = ""
        self.deposed = asyncio.Event()
        """Event that is set when another brain serves from the database or could do so. This brain must then stop."""
        self._strict = strict
        self.council, self._store, self.pool = ClusterState(rules), store, pool
        self._start, self._began = time.time(), time.monotonic()
        self._waiting: dict[str, asyncio.Future[Advice]] = {}
        self._names = cluster_state.JobNames()
        self._asked = asyncio.Event()
        self._database = asyncio.Lock()
        self._past = PastJobs()
        self._counts = RoundCounts()
        self._trouble = ""

    def _now(self) -> float:
        """Return the time of day, but never less than before; rows of earlier brains use the same clock."""
        return self._start + time.monotonic() - self._began

    async def restore(self) -> None:
        found = await self._in_thread(self._store.live)
        bad = rows.restore_live(self.council, found, at=self._now())
        self._names.restore(self.council.jobs)
        await self._read_history()
        if self.council.jobs or bad:
            log.info("took back %d live jobs; %d rows were unreadable", len(self.council.jobs), bad)

    async def handle(self, peer: Peer, request: messages.Request) -> messages.Reply:
        if self.deposed.is_set():
            raise errors.TemporaryError("this brain has stopped serving: ask the active brain")
        match request:
            case messages.Consult():
                return await self._consult(request)
            case messages.ConcludeJob():
                return await self._conclude(request)
            case messages.Inspect():
                return self._status()
            case messages.Recall():
                found = await self._in_thread(lambda: self._store.history(newest=max(0, min(request.newest, 1000))))
                total = await self._in_thread(self._store.count)
                return messages.Recalled(jobs=found.jobs, unreadable=found.unreadable, total=total)
            case messages.ResizeExecutors():
                await self.pool.resize(request.executors)
                log.info("%d executors from now on", request.executors)
                return Ok()

    async def rounds(self, gather_s: float = GATHER_S) -> None:
        """Decide in rounds. Before each round, the service waits about as long as the last round took. In this time,
        the service reads messages.
        """
        while True:
            await self._asked.wait()
            await asyncio.sleep(max(gather_s, min(self._counts.decision_s, 10 * gather_s)))
            self._asked.clear()
            try:
                await self._round()
            # after any failure, masters must not wait forever, and the next round may succeed
            except Exception as error:
                log.exception("a round of decisions failed")
                self._fail_all(f"a round of decisions failed: {type(error).__name__}: {error}")

    async def tidy(self, every_s: float = KEEP_S) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.write_down()
                if not self._strict:
                    # take the lock again, because it may have been lost with the connection
                    await self._in_thread(self._store.claim)
            except errors.BadInput as error:
                self._depose(str(error))
            except Exception as error:  # an invalid view of one job must not stop the brain from forgetting silent jobs
                self._trouble = f"live jobs were not stored: {type(error).__name__}: {error}"
                log.exception("live jobs were not written down")

    async def watch(self, every_s: float = WATCH_S) -> None:
        """Check the lock regularly while standbys wait, and set `deposed` if it is lost."""
        while not self.deposed.is_set():
            await asyncio.sleep(every_s)
            if not await self._in_thread(self._store.holds):
                self._depose("its lock on the database went with its connection")

    def _depose(self, why: str) -> None:
        log.warning("this brain stops serving: %s", why)
        self._fail_all(f"this brain has stopped serving: {why}")
        self.deposed.set()

    async def write_down(self) -> None:
        """Write each job whose view is newer than its row in the database, and delete the rows of forgotten jobs."""
        gone = self.council.forget(self._now())
        for name in gone:
            self._forget_job(name)
            log.info("job %s has sent no view for long: forgotten", name)
        stale = [name for name, live in self.council.jobs.items() if live.seen_at > live.kept_at]
        await self._keep(stale, gone)

    async def _consult(self, request: messages.Consult) -> messages.Counsel:
        self._counts.consults += 1
        now, own = self._now(), request.view.name
        if not 0 <= request.epoch <= rows.MOST_EPOCH:
            raise errors.BadInput(f"job {own}: epoch {request.epoch}; expected a number from 0 to 2^63 - 1")
        view = replace(request.view, name=self._names.of(own, request.key))
        before = self._waiting.pop(view.name, None)
        if before is not None and not before.done():
            before.set_exception(errors.TemporaryError(f"this question is outdated: job {own} has asked again"))
        advice = self.council.consult(view, epoch=request.epoch, at=now, ahead=now - request.now)
        if advice is None:
            future = self._waiting[view.name] = asyncio.get_running_loop().create_future()
            self._asked.set()
            advice = await future
        elif advice.plan is not None and not await self._keep([view.name]) and self._strict:
            raise errors.TemporaryError(f"the promise to job {own} could not be stored")
        return messages.Counsel(cluster_state.own_words(advice, own))

    async def _conclude(self, request: messages.ConcludeJob) -> Ok:
        name = self._names.of(request.past.name, request.key)
        self.council.conclude(name)
        self._forget_job(name)
        await self._keep([], [name])
        await self._in_thread(lambda: self._store.remember(request.past))
        self._past.read_at, self._past.total = float("-inf"), self._past.total + 1
        return Ok()

    async def _round(self) -> None:
        now = self._now()
        if now - self._past.read_at > READ_S:
            await self._read_history()
        began = time.monotonic()
        assignments = self.council.assignments(self._past.history.jobs, now)
        decided = await asyncio.gather(*(self._decided(assignment) for assignment in assignments))
        told = {name: advice for answers in decided for name, advice in answers.items()}
        self._counts.decisions += 1
        self._counts.decision_s = time.monotonic() - began
        if not await self._keep([name for name, advice in told.items() if advice.plan is not None]) and self._strict:
            raise errors.TemporaryError(f"promises could not be stored: {self._trouble}")
        for name, advice in told.items():
            future = self._waiting.pop(name, None)
            if future is not None and not future.done():
                future.set_result(advice)
        if any(live.asks for live in self.council.jobs.values()):
            self._asked.set()

    def _fail_all(self, why: str) -> None:
        self._trouble = why
        for live in self.council.jobs.values():
            live.asks = False
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(errors.TemporaryError(why))
        self._waiting.clear()

    async def _decided(self, task: PolicyTask) -> dict[str, Advice]:
        decision = await self.pool.decide(PolicyQuery(task.policy, task.view, self.council.rules.config))
        return self.council.advise(task, decision, self._now())

    def _forget_job(self, name: str) -> None:
        self._names.forget(name)
        future = self._waiting.pop(name, None)
        if future is not None and not future.done():
            future.set_exception(errors.TemporaryError(f"job {name} is over"))

    async def _keep(self, changed: list[str], gone: list[str] | None = None) -> bool:
        """Write jobs to the database and return True on success. After a failed write, report the failure and continue
        to decide."""
        now, live = self._now(), {name: self.council.jobs[name] for name in changed if name in self.council.jobs}
        if not live and not gone:
            return True
        rows = {name: row for name, job in live.items() if (row := self._row(job)) is not None}
        try:
            await self._in_thread(lambda: self._store.keep_live(list(rows.values()), gone or []))
        except errors.SpringtideError as error:
            self._troubled("live jobs were not written down", error)
            if isinstance(error, errors.Fenced):
                self._depose(str(error))
            return False
        for name in rows:
            live[name].kept_at = now
        return True

    def _row(self, live: LiveJobView) -> dict[str, Any] | None:
        """Return the database row of a job. Return None for a view that the database cannot store, so that the other
        jobs are still written.
        """
        try:
            return rows.live_row(live)
        except errors.BadInput as error:
            self._troubled("a job was not stored", error)
            return None

    def _troubled(self, what: str, error: errors.SpringtideError) -> None:
        self._trouble = str(error)
        log.warning("%s: %s", what, error)

    async def _read_history(self) -> None:
        self._past.read_at = self._now()
        try:
            self._past.history = await self._in_thread(self._store.history)
            self._past.total = await self._in_thread(self._store.count)
        except errors.SpringtideError as error:
            self._troubled("the history was not read", error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._database:
            return await asyncio.to_thread(work)

    def _status(self) -> messages.BrainStatus:
        rules = self.council.rules
        return messages.BrainStatus(
            address=self.address,
            pid=os.getpid(),
            up_s=time.monotonic() - self._began,
            database=self._store.where,
            capacity=rules.capacity,
            held=self.council.held(),
            executors=messages.ExecutorCount(wanted=self.pool.wanted, pids=self.pool.pids, lost=self.pool.lost),
            policies={"otherwise": rules.config.policy, **rules.algorithms},
            jobs=tuple(_shown(name, live, self._now()) for name, live in sorted(self.council.jobs.items())),
            past=self._past.total,
            unreadable=self._past.history.unreadable,
            consults=self._counts.consults,
            decisions=self._counts.decisions,
            decision_s=self._counts.decision_s,
            trouble=self._trouble,
        )


def _shown(name: str, live: LiveJobView, now: float) -> messages.LiveJob:
    request, advice = live.request, live.advice
    return messages.LiveJob(
        name=name,
        user=live.view.identity.user,
        stage=str(live.view.stage),
        shape=live.view.shape,
        seen_s=now - live.seen_at,
        event=str(request.kind) if request else "",
        cause=request.cause if request else "",
        policy=request.policy if request else "",
        why=advice.why if advice else "",
        promised=live.pledge.plan.shape if live.pledge else None,
    )
