"""Grants leases to workers and records their progress in the job's data ledger.

In: `LeaseRequest`, `CutRequest` and the progress on heartbeats, from `master.dispatcher`. Out: replies. Every change of
the ledger goes through the journal first. This module decides nothing: `data.ledger.job_ledger` decides.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder, LeaseKey, LedgerReply, NoLease, Progress, ReadFailure
from springtide.job.core import events
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core import journal_entries
from springtide.master.core.context import MasterContext
from springtide.master.servers.recovery import ServerRecovery
from springtide.rpc.messages import messages

# hold for a bsp group that waits for records: short, because its request has the partition ends at that time
HOLD_GROUP_S = 0.1
LINGER_S = 1.0  # wait before a bsp group trains a batch that is not full
HOLD_S = 1.0  # longest time to hold a lease request, so that idle workers do not poll in a tight loop


class LeaseService:
    """The leases of one job."""

    def __init__(self, context: MasterContext, healing: ServerRecovery, checkpoints: CheckpointSchedule) -> None:
        self._context, self._healing, self._checkpoints, self._clock = context, healing, checkpoints, context.clock
        self.asked_at: dict[int, float] = {}
        """When each rank last asked for partitions of a stream."""
        self._short_since: dict[int, float] = {}
        """Since when a bsp group's pass over a stream has had less than a full batch."""

    async def lease(
        self, holder: LeaseHolder, request: messages.LeaseRequest
    ) -> messages.LeaseReply | messages.Regroup | messages.WaitReply | messages.DataEnd:
        """Return leases, or the reason why there are none. The request waits a while for leases."""
        self.words(holder, request.progress, request.failures, request.era)
        context, book, card = self._context, self._context.record.book, request.card
        if card.in_step and not context.record.state.bsp.in_step:
            context.apply(events.BspBegan())
        if request.ends is not None:
            with context.journaled(journal_entries.EndEntry(holder, card, request.ends)):
                book.end(holder, card, request.ends)
            context.changed.turn()
        known = tuple(LeaseKey(word.shard, word.first) for word in request.progress)
        seen = book.news(card, request.seen) if card.stream is not None else ()
        if card.stream is not None:
            self.asked_at[holder.rank] = self._clock()
        answer: Any = NoLease.WAIT

        def lease() -> bool:
            nonlocal answer, seen
            entry = journal_entries.LeaseEntry(holder, card, request.most, self._clock(), known, request.era, seen)
            with context.journaled(entry):
                answer = context.record.lease(entry)
            seen = ()
            return answer is not NoLease.WAIT

        def answered() -> bool:
            return lease() or (self._plan(holder, request) and lease())

        self._checkpoints.look()  # the end of data may wait only for a checkpoint
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S if not (card.in_step and card.stream) else HOLD_GROUP_S):
                await context.changed.until(answered)
        if answer is NoLease.WAIT:
            return messages.WaitReply()
        if answer is NoLease.FENCED:
            raise errors.Fenced(f"{holder} was given up: its work is with others, and it should leave")
        if answer is NoLease.REGROUP:
            return messages.Regroup()
        if isinstance(answer, NoLease):
            return messages.DataEnd(stop=book.is_cut_short(card))
        return self._healing.leased(answer)

    def _plan(self, holder: LeaseHolder, request: messages.LeaseRequest) -> bool:
        """Choose the next range of a stream for a bsp group, from the partitions that the first asking rank sees."""
        book, now = self._context.record.book, self._clock()
        convoy = book.bsp_stream(request.card)
        if convoy is None or not request.seen:
            return False
        lingered = now - self._short_since.get(convoy.base, now) >= LINGER_S
        stretch, short = convoy.choose(request.seen, lingered=lingered)
        if stretch is None:
            if not short:
                self._short_since.pop(convoy.base, None)
            self._short_since.setdefault(convoy.base, now)
            return False
        self._short_since.pop(convoy.base, None)
        with self._context.journaled(journal_entries.StretchEntry(holder.rank, convoy.base, stretch)):
            return book.plan(holder.rank, convoy.base, stretch)

    def cut(self, holder: LeaseHolder, request: messages.CutRequest) -> messages.CutsNoted:
        """End stream batches that did not fill in time, for every reader."""
        book = self._context.record.book
        with self._context.journaled(journal_entries.CutEntry(holder, request.cuts, request.era)):
            counted = book.cut(holder, request.cuts, request.era)
        return messages.CutsNoted(counted, book.era)

    def words(
        self, holder: LeaseHolder, words: Sequence[Progress], failures: Sequence[ReadFailure] = (), era: int = 0
    ) -> LedgerReply:
        """Apply a holder's progress and read failures to the ledger, and return the ledger's reply."""
        context, book = self._context, self._context.record.book
        failed = False
        for failure in (
            failures if era == book.era else ()
        ):  # failures come first, because progress on such a lease ends it before the unreadable sample
            with context.journaled(journal_entries.FailEntry(holder, failure)):
                if book.fail(holder, failure):
                    failed = True
                    context.log_event("unreadable", role=f"worker-{holder.rank}", **failure._asdict())
            if failed and book.hopeless:
                role = Role(RoleKind.WORKER, holder.rank)
                error = f"no worker can read the data: {failure.error}"
                context.apply(events.ScriptFailed(role, error, incarnation=holder.incarnation))
        entry = journal_entries.ReportEntry(holder, tuple(words), self._clock(), era)
        with context.journaled(entry):
            verdict = context.record.report(entry)
        if verdict.freed or failed:
            context.changed.turn()
        return verdict
