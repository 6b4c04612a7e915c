"""Measures the pace of workers, and resizes or cuts the leases of stragglers.

In: ticks of `master.dispatcher`; the clock is an argument. Out: `LeaseMoves`, applied to the ledger and logged through
the `MasterContext`. `job.stragglers.stragglers` decides lease sizes. `job.stragglers.endgame` decides which workers
give up part of a lease near the end.
"""

from collections.abc import Collection
from typing import NamedTuple

from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import StragglerRules
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.job.stragglers import endgame, stragglers
from springtide.job.stragglers.speed import WorkerPaces
from springtide.master.core import journal_entries
from springtide.master.core.context import MasterContext

LOOK_S = 1.0  # one heartbeat: reports do not change more often


class LeaseMoves(NamedTuple):
    """Changes to leases, each with its reason."""

    resizes: tuple[stragglers.LeaseResize, ...] = ()
    cuts: tuple[endgame.LeaseCut, ...] = ()


class LeaseBalancer:
    """Paces of one job's workers. Nothing is journaled: a new master measures the paces again within seconds."""

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self._rules = rules or StragglerRules()
        self._paces = WorkerPaces(self._rules.window_s)
        self._looked_at = self._judged_at = float("-inf")
        self._lives: dict[int, int] = {}
        self.why = "no worker has trained long enough to be compared"
        """Reason of the last judgement, even if it changed nothing."""

    def look(self, book: JobLedger, alive: Collection[int], at: float) -> LeaseMoves:
        """Return the changes to make now, usually none. `alive` are the ranks that can take work."""
        if at < self._looked_at + LOOK_S or book.in_step:
            return LeaseMoves()
        self._looked_at = at
        for rank, incarnation in book.holders.living.items():
            if self._lives.get(rank, incarnation) != incarnation:
                self._paces.forget(rank)
            self._lives[rank] = incarnation
        leases = book.leases()
        self._paces.look(book.holders.trained, {lease.holder.rank for _, _, lease in leases}, at)
        resizes: tuple[stragglers.LeaseResize, ...] = ()
        if at >= self._judged_at + self._rules.every_s and len(judged := self._paces.judged()) > 1:
            self._judged_at = at
            resizes, self.why = stragglers.judge(judged, book.holders.halvings, self._rules)
        if not leases or book.todo_samples or book.closed:
            return LeaseMoves(resizes)
        holdings = [
            endgame.LeaseLoad(
                rank=lease.holder.rank,
                shard=key.shard,
                first=key.first,
                offset=lease.offset,
                end=lease.end if lease.wish is None else lease.wish,
                batch=card.batch_size,
            )
            for card, key, lease in leases  # in the order of granting, in which workers train them
        ]
        return LeaseMoves(resizes, endgame.level(holdings, self._paces.known(), tuple(alive)))

    def act(self, context: MasterContext, now: float) -> None:
        """Shrink leases of stragglers, and cut leases near the end of the data."""
        book, workers = context.record.book, context.record.state.of_kind(RoleKind.WORKER)
        moves = self.look(book, [node.role.rank for node in workers if node.state is NodeState.JOINED], now)
        for resize in moves.resizes:
            with context.journaled(journal_entries.ResizeEntry(resize.rank, resize.halvings)):
                book.resize(resize.rank, resize.halvings)
            context.apply(events.DecisionMade(f"resize the leases of worker-{resize.rank}", resize.why))
        for cut in moves.cuts:
            with context.journaled(journal_entries.ShortenEntry(cut.wish)):
                wished = book.wish(cut.wish)
            if wished:
                context.log_event(
                    "shorten", role=f"worker-{cut.rank}", shard=cut.wish.shard, end=cut.wish.end, why=cut.why
                )
