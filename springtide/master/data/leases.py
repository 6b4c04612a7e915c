"""Grants leases, records progress in the data ledger, assigns partitions, and cuts the leases of stragglers.

Every change of the ledger is journaled. `data.ledger.job_ledger`, `data.partition_assign` and `job.stragglers` decide.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.ledger.stream_ledger import StreamLedger
from springtide.data.partition_assign import assign
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder, LeaseKey, LedgerReply, NoLease, Progress, ReadFailure
from springtide.domain.spec.job_spec import StragglerRules
from springtide.job import stragglers
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.job.stragglers import WorkerPaces
from springtide.master.autoscale.online_loop import OnlineAutoscaler
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.master.servers.recovery import ServerRecovery
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import CutRequest, CutsNoted, Regroup

# longest time in seconds to hold the request of a bsp group that waits for records; short, because the partition ends
# in the request become outdated
HOLD_GROUP_S = 0.1
LINGER_S = 1.0  # seconds to wait before a bsp group trains a batch that is not full
HOLD_S = 1.0  # longest time in seconds to hold a lease request, so that idle workers do not ask again and again


class LeaseService:
    """The leases of one job."""

    def __init__(self, context: MasterContext, healing: ServerRecovery, checkpoints: CheckpointSchedule) -> None:
        self._context, self._healing, self._checkpoints, self._clock = context, healing, checkpoints, context.clock
        self.asked_at: dict[int, float] = {}
        self._short_since: dict[int, float] = {}
        """Since when a bsp group's pass over a stream has had less than a full batch."""

    async def lease(
        self, holder: LeaseHolder, request: messages.LeaseRequest
    ) -> messages.LeaseReply | Regroup | messages.WaitReply | messages.DataEnd:
        """Return leases, or the reason why there are none. If there are no leases, hold the request for a while."""
        self.on_progress(holder, request.progress, request.failures, request.era)
        context, book, card = self._context, self._context.record.book, request.card
        if card.in_step and not context.record.state.bsp.in_step:
            context.apply(events.BspBegan())
        if request.ends is not None:
            context.journaled(book.end, holder, card, request.ends, request.short)
            context.changed.wake_all()
        known = tuple(LeaseKey(word.shard, word.first) for word in request.progress)
        seen = book.news(card, request.seen) if card.stream is not None else ()
        if card.stream is not None:
            self.asked_at[holder.rank] = self._clock()
        answer: Any = NoLease.WAIT

        def lease() -> bool:
            nonlocal answer, seen
            at = self._clock()
            answer = context.journaled(context.record.lease, holder, card, request.most, at, known, request.era, seen)
            seen = ()
            return answer is not NoLease.WAIT

        def answered() -> bool:
            return lease() or (self._plan(holder, request) and lease())

        # begin a checkpoint if one is due, because the end of the pass may wait for nothing else
        self._checkpoints.poll()
        await context.changed.until(answered, at_most_s=HOLD_GROUP_S if card.in_step and card.stream else HOLD_S)
        if answer is NoLease.WAIT:
            return messages.WaitReply()
        if answer is NoLease.FENCED:
            raise errors.Fenced(f"{holder} was fenced: its leases went to other workers, and it must exit")
        if answer is NoLease.REGROUP:
            return Regroup()
        if isinstance(answer, NoLease):
            return messages.DataEnd(stop=book.is_cut_short(card))
        return self._healing.leased(answer)

    def _plan(self, holder: LeaseHolder, request: messages.LeaseRequest) -> bool:
        """Choose the next range of a stream for a bsp group. The partition ends come from the request of the first
        rank."""
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
        return self._context.journaled(book.plan, holder.rank, convoy.base, stretch)

    def cut(self, holder: LeaseHolder, request: CutRequest) -> CutsNoted:
        book = self._context.record.book
        counted = self._context.journaled(book.cut, holder, request.cuts, request.era)
        return CutsNoted(counted, book.era)

    def on_progress(
        self, holder: LeaseHolder, words: Sequence[Progress], failures: Sequence[ReadFailure] = (), era: int = 0
    ) -> LedgerReply:
        context, book = self._context, self._context.record.book
        failed = False
        # record failures before progress, because the progress report of such a lease cuts off its unreadable sample
        for failure in failures if era == book.era else ():
            if context.journaled(book.fail, holder, failure):
                failed = True
                context.log_event("unreadable", role=f"worker-{holder.rank}", **failure._asdict())
            if failed and book.hopeless:
                role = Role(RoleKind.WORKER, holder.rank)
                error = f"no worker can read the data: {failure.error}"
                context.apply(events.ScriptFailed(role, error, incarnation=holder.incarnation))
        verdict = context.journaled(context.record.report, holder, tuple(words), self._clock(), era)
        if verdict.freed or failed:
            context.changed.wake_all()
        return verdict


LOOK_S = 0.5  # seconds between checks
# a worker does not read the stream if it holds no partition and has not asked for one for this many seconds
ASKS_S = 10.0
PATIENCE_S = 1.5  # seconds that new partitions wait for workers that have just started
SLOW_S = 300.0
"""Seconds after which a slow worker may get partitions again. A worker without work cannot be measured, so nothing
would show that it has recovered.
"""


class PartitionAssigner:
    """Assigns the partitions of one job. Only the decisions are journaled."""

    def __init__(self, context: MasterContext, asked_at: Mapping[int, float], online: OnlineAutoscaler) -> None:
        """`asked_at` has the time when each rank last asked for partitions. `online` knows which workers are slow."""
        self._context, self._asked_at, self._online = context, asked_at, online
        self._looked_at = float("-inf")
        self._new_since: dict[int, float] = {}
        """When each new partition began to wait for its first worker, by shard."""
        self._slow_at: dict[int, float] = {}

    def act(self, now: float, *, lost: bool = False) -> None:
        if (now < self._looked_at + LOOK_S and not lost) or self._context.record.state.phase.over:
            return
        self._looked_at = now
        for flow in self._context.record.book.flows():
            if flow.partitions and not flow.closed and not flow.over:
                self._check_stream(flow, now)

    def _check_stream(self, flow: StreamLedger, now: float) -> None:
        ranks = self._readers(flow, now)
        owners = {
            number: partition.owner for number, partition in flow.partitions.items() if partition.owner is not None
        }
        self._new_since |= dict.fromkeys((flow.base + number for number in owners), float("-inf"))
        since = {number: self._new_since.setdefault(flow.base + number, now) for number in flow.partitions}
        known = {number for number in flow.partitions if now - since[number] >= PATIENCE_S}
        self._slow_at |= dict.fromkeys(self._online.slow, now)
        slow = [rank for rank, at in self._slow_at.items() if now < at + SLOW_S]
        wanted, why = assign(known, owners, ranks, slow)
        news = tuple(
            (flow.base + number, rank) for number, rank in sorted(wanted.items()) if owners.get(number) != rank
        )
        if news:
            self._context.journaled(self._context.record.book.assign, news)
            self._context.apply(events.DecisionMade(f"move {len(news)} partitions", why))
            self._context.changed.wake_all()

    def _readers(self, flow: StreamLedger, now: float) -> list[int]:
        """Return the ranks that can take partitions: workers that are present, do not drain, and hold or request
        partitions.
        """
        state = self._context.record.state
        here = [node.role for node in state.of_kind(RoleKind.WORKER) if node.state is NodeState.JOINED]
        return [
            role.rank
            for role in here
            if not state.draining(role)
            and (flow.held.get(role.rank) or now - self._asked_at.get(role.rank, float("-inf")) <= ASKS_S)
        ]


BALANCE_S = 1.0  # seconds between decisions: one heartbeat interval, because reports do not change more often


class LeaseMoves(NamedTuple):
    """Changes to leases, each with its reason."""

    resizes: tuple[stragglers.LeaseResize, ...] = ()
    cuts: tuple[stragglers.LeaseCut, ...] = ()


class LeaseBalancer:
    """Keeps the pace of each worker of a job, and shortens leases of slow workers. Nothing is journaled: a new master
    measures the paces again within seconds."""

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self._rules = rules or StragglerRules()
        self._paces = WorkerPaces(self._rules.window_s)
        self._looked_at = self._judged_at = float("-inf")
        self._lives: dict[int, int] = {}
        self.why = "no worker has trained long enough to be compared"
        """Reason of the last decision, even if it changed nothing."""

    def poll(self, book: JobLedger, alive: Collection[int], at: float) -> LeaseMoves:
        if at < self._looked_at + BALANCE_S or book.in_step:
            return LeaseMoves()
        self._looked_at = at
        for rank, incarnation in book.holders.living.items():
            if self._lives.get(rank, incarnation) != incarnation:
                self._paces.forget(rank)
            self._lives[rank] = incarnation
        leases = book.leases()
        self._paces.observe(book.holders.trained, {lease.holder.rank for _, _, lease in leases}, at)
        resizes: tuple[stragglers.LeaseResize, ...] = ()
        if at >= self._judged_at + self._rules.every_s and len(judged := self._paces.comparable()) > 1:
            self._judged_at = at
            resizes, self.why = stragglers.judge(judged, book.holders.halvings, self._rules)
        if not leases or book.todo_samples or book.closed:
            return LeaseMoves(resizes)
        holdings = [
            stragglers.LeaseLoad(
                rank=lease.holder.rank,
                shard=key.shard,
                first=key.first,
                offset=lease.offset,
                end=lease.end if lease.wish is None else lease.wish,
                batch=card.batch_size,
            )
            # leases in the order in which they were granted, which is also the order of training
            for card, key, lease in leases
        ]
        return LeaseMoves(resizes, stragglers.level_leases(holdings, self._paces.known(), tuple(alive)))

    def act(self, context: MasterContext, now: float) -> None:
        book, workers = context.record.book, context.record.state.of_kind(RoleKind.WORKER)
        moves = self.poll(book, [node.role.rank for node in workers if node.state is NodeState.JOINED], now)
        for resize in moves.resizes:
            context.journaled(book.resize, resize.rank, resize.halvings)
            context.apply(events.DecisionMade(f"resize the leases of worker-{resize.rank}", resize.why))
        for cut in moves.cuts:
            if context.journaled(book.wish, cut.wish):
                context.log_event(
                    "shorten", role=f"worker-{cut.rank}", shard=cut.wish.shard, end=cut.wish.end, why=cut.why
                )
