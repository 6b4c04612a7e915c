"""Assigns every partition of a stream to a worker that reads, and balances partitions over workers.

In: workers that ask for partitions (`master.data.leases`), reports of holders, ticks of `master.dispatcher`, and its
notices of lost workers. Out: owners in the ledger, decided by `data.partition_assign`. A holder learns of a moved
partition with its next heartbeat. Traffic is checked rarely, because the workers' shared queue of batches balances it
sooner.
"""

from collections import deque
from collections.abc import Mapping

from springtide.data.ledger.stream_ledger import StreamLedger
from springtide.data.partition_assign import assign
from springtide.domain.core.roles import RoleKind
from springtide.domain.data.streams import StreamUse
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.master.autoscale.online_loop import OnlineAutoscaler
from springtide.master.core import journal_entries
from springtide.master.core.context import MasterContext

LOOK_S = 0.5  # interval between checks
ASKS_S = 10.0  # a worker that holds nothing and has not asked for this long does not read the stream
PATIENCE_S = 1.5  # new partitions wait this long for workers that have just started
TRAFFIC_S = 60.0  # interval between checks of traffic, and the window over which it is measured
SLOW_S = 300.0
"""Time after which a worker that was slow may get partitions again. With little work, its pace says little."""


class PartitionAssigner:
    """Assigns the partitions of one job. Only its decisions are journaled."""

    def __init__(self, context: MasterContext, asked_at: Mapping[int, float], online: OnlineAutoscaler) -> None:
        """`asked_at` is when each rank last asked for partitions. `online` knows which workers are slow."""
        self._context, self._asked_at, self._online = context, asked_at, online
        self._looked_at = self._weighed_at = float("-inf")
        self._new_since: dict[int, float] = {}
        """When each new partition began to wait for its first worker, by shard. Partitions that lost their worker do
        not wait."""
        self._ends: deque[tuple[float, dict[int, int]]] = deque(maxlen=2)
        self._newest: dict[int, int] = {}
        self._slow_at: dict[int, float] = {}
        """When each rank was last slow."""

    def heard(self, use: StreamUse | None) -> None:
        """Record the ends of partitions from a holder's report."""
        for view in use.partitions if use is not None else ():
            self._newest[view.partition] = max(view.end, self._newest.get(view.partition, 0))

    def act(self, now: float, *, lost: bool = False) -> None:
        """Reassign partitions if necessary. `lost` is True right after the loss of a worker."""
        if (now < self._looked_at + LOOK_S and not lost) or self._context.record.state.phase.over:
            return
        self._looked_at = now
        for flow in self._context.record.book.flows():
            if flow.partitions and not flow.closed and not flow.over:
                self._look_at(flow, now)

    def _look_at(self, flow: StreamLedger, now: float) -> None:
        ranks = self._readers(flow, now)
        owners = {number: one.owner for number, one in flow.partitions.items() if one.owner is not None}
        self._new_since |= dict.fromkeys((flow.base + number for number in owners), float("-inf"))
        since = {number: self._new_since.setdefault(flow.base + number, now) for number in flow.partitions}
        known = {number for number in flow.partitions if now - since[number] >= PATIENCE_S}
        self._slow_at |= dict.fromkeys(self._online.slow, now)
        slow = [rank for rank, at in self._slow_at.items() if now < at + SLOW_S]
        wanted, why = assign(known, owners, ranks, self._rates(now), slow)
        news = tuple(
            (flow.base + number, rank) for number, rank in sorted(wanted.items()) if owners.get(number) != rank
        )
        if news:
            with self._context.journaled(journal_entries.AssignEntry(news)):
                self._context.record.book.assign(news)
            self._context.apply(events.DecisionMade(f"move {len(news)} partitions", why))
            self._context.changed.turn()

    def _readers(self, flow: StreamLedger, now: float) -> list[int]:
        """Return the ranks that can take partitions: present, not draining, and asking for or holding partitions."""
        state = self._context.record.state
        here = [node.role for node in state.of_kind(RoleKind.WORKER) if node.state is NodeState.JOINED]
        return [
            role.rank
            for role in here
            if not state.draining(role)
            and (flow.held.get(role.rank) or now - self._asked_at.get(role.rank, float("-inf")) <= ASKS_S)
        ]

    def _rates(self, now: float) -> dict[int, float]:
        """Return the record rate of each partition once a minute, otherwise nothing, so that partitions rarely move."""
        if now < self._weighed_at + TRAFFIC_S:
            return {}
        self._weighed_at = now
        self._ends.append((now, dict(self._newest)))
        (before_at, before), (at, ends) = self._ends[0], self._ends[-1]
        if at <= before_at:
            return {}
        return {number: max(0, end - before.get(number, end)) / (at - before_at) for number, end in ends.items()}
