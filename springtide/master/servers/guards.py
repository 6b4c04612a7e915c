"""Protects servers from slow machines, from hot spots, and from running out of memory.

`planning.guards.memory` and `planning.guards.hot_servers` decide. Out: events, each with its reason.
"""

import itertools
import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import msgspec

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.data.streams import FAR
from springtide.domain.spec.job_spec import GuardRules
from springtide.job.core import events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.master.core.context import MasterContext
from springtide.master.core.progress import ProgressTally
from springtide.master.servers.migration import SlotMigration
from springtide.planning.guards import hot_servers, memory
from springtide.rpc.messages.types import MemberReport

log = logging.getLogger(__name__)

# most measurements of table growth. When there are more measurements, every second one is dropped, so that the rest
# still covers the whole job.
POINTS = 120
# shortest interval, in seconds, between two reports that are compared; over a shorter interval, a short delay looks
# like a slow machine
LATEST_S = 0.4
# lengths in seconds of two windows of quota use. The short window detects a machine that grants almost no CPU, and the
# long window a machine that grants half of it.
QUOTAS_S = (0.15, 0.4)
REST_S = 10.0  # seconds to wait after a change of servers, so that its effect is visible before the next decision


class ServerSums(msgspec.Struct):
    """Totals of one server incarnation at one time."""

    at: float
    keys: float
    ns: float
    cpu_s: float


class UsageSample(msgspec.Struct):
    """The agent's measurement of one server incarnation at one moment."""

    at: float
    usage: RoleUsage
    due: float
    """Number of cores that the server should get."""


class ServerHistory(msgspec.Struct):
    """Recent observations of one server incarnation."""

    incarnation: int
    report: MemberReport | None = None
    sums: deque[ServerSums] = msgspec.field(default_factory=deque)
    measured: deque[UsageSample] = msgspec.field(default_factory=deque)
    """Measurements by the agent, over the most recent window."""
    at_work_since: float = math.inf
    """Time when the server first served keys. The server's first seconds are not recorded."""
    blamed: int = 0
    """Number of consecutive checks that found the server at fault."""


class ServerGuards:
    """Guards that observe one job's servers and ask for changes."""

    def __init__(self, context: MasterContext, rollout: SlotMigration) -> None:
        self._context, self._record, self._rollout = context, context.record, rollout
        self._seen: list[memory.RowCount] = []
        self._watched: dict[int, ServerHistory] = {}
        self._rest_until = 0.0
        self.ahead: tuple[memory.MemoryForecast, ...] = ()
        self.refused: tuple[float, events.JobEvent, str] | None = None

    @property
    def rules(self) -> GuardRules:
        return self._record.state.spec.guards

    def poll(self, tally: ProgressTally, usage: Mapping[Role, RoleUsage], now: float) -> None:
        nodes = self._servers()
        self._take_down(nodes, tally, usage, now)
        if not nodes or not self._may_act(nodes, now):
            return
        event = self._on_memory(nodes, tally, usage) or self._on_pace(nodes, usage)
        if event is not None:
            self._act(event, now)

    def glance(self, usage: Mapping[Role, RoleUsage], now: float) -> None:
        """Only check for servers that do not get their share of CPU. This check runs after each message of the
        agent.
        """
        nodes = self._servers()
        for node in nodes:
            self._measure(self._of(node), node, usage.get(node.role), now)
        if not self.rules.servers or not nodes or not self._may_act(nodes, now):
            return
        for seconds in QUOTAS_S:
            quotas = [quota for node in nodes if (quota := self._quota(node, seconds)) is not None]
            if (worst := hot_servers.cut_short(quotas, self.rules)) is not None:
                room = self._peers_have_room(worst.rank, nodes, usage)
                return self._act(events.ServerReplaced(worst.rank, worst.why, at_once=room), now)

    def _servers(self) -> list[RoleNode]:
        """Return the servers to guard: ready servers of a training job whose servers may change."""
        state = self._record.state
        if not self._record.slots.owners or state.phase.over or state.healing:
            return []
        return [node for node in state.of_kind(RoleKind.SERVER) if node.state is NodeState.JOINED and not node.coming]

    def _may_act(self, nodes: list[RoleNode], now: float) -> bool:
        quiet = now >= self._rest_until and not self._rollout.moving
        return quiet and len(nodes) == self._record.state.servers_wanted

    def _of(self, node: RoleNode) -> ServerHistory:
        watched = self._watched.get(node.role.rank)
        if watched is None or watched.incarnation != node.incarnation:
            watched = self._watched[node.role.rank] = ServerHistory(node.incarnation)
        return watched

    def _act(self, event: events.JobEvent, now: float) -> None:
        self._rest_until = now + REST_S
        self._watched.clear()
        try:
            self._context.apply(event)
        except errors.BadInput as refused:
            log.info("not now: %s", refused)
            self.refused = (now, event, str(refused))
            return
        if isinstance(event, events.DecisionMade):
            self._rollout.rebalance()
        self._rollout.tick()

    def _take_down(
        self, nodes: list[RoleNode], tally: ProgressTally, usage: Mapping[Role, RoleUsage], now: float
    ) -> None:
        rows = 0.0
        for node in nodes:
            report = tally.reports.get(node.role)
            counters = report.counters if report is not None else {}
            rows += counters.get("rows", 0.0)
            watched = self._of(node)
            if report is watched.report:
                continue
            watched.report = report
            keys = counters.get("pulled_keys", 0.0) + counters.get("pushed_keys", 0.0)
            ns = counters.get("lookup_ns", 0.0) + counters.get("update_ns", 0.0)
            if keys and watched.at_work_since == math.inf:
                watched.at_work_since = now
            if now - watched.at_work_since < self.rules.window_s:
                continue
            used = usage.get(node.role)
            watched.sums.append(ServerSums(now, keys, ns, used.cpu_s if used else 0.0))
            while len(watched.sums) > 2 and watched.sums[1].at <= now - self.rules.window_s:
                watched.sums.popleft()
        samples = float(self._record.book.samples_done)
        if rows and samples > (self._seen[-1].samples if self._seen else 0.0):
            self._seen.append(memory.RowCount(samples, rows))
            if len(self._seen) > POINTS:
                self._seen = self._seen[1::2]

    def _measure(self, watched: ServerHistory, node: RoleNode, used: RoleUsage | None, now: float) -> None:
        """Record recent measurements of a server. Start again when the CPU limit of the server changes."""
        seen = watched.measured
        if used is None or node.cpu is None or used.incarnation != node.incarnation:
            return
        if seen and seen[-1].usage == used:  # the report repeats the last measurement, so ignore it
            return
        if seen and seen[-1].due != node.cpu:
            seen.clear()
        seen.append(UsageSample(now, used, node.cpu))
        while len(seen) > 2 and seen[1].at <= now - QUOTAS_S[-1]:
            seen.popleft()

    def _on_memory(
        self, nodes: list[RoleNode], tally: ProgressTally, usage: Mapping[Role, RoleUsage]
    ) -> events.JobEvent | None:
        self.ahead = self._forecast_memory(nodes, tally, usage)
        if not self.rules.memory or not self.ahead:
            return None
        samples = self._seen[-1].samples
        decision = memory.decide(self.ahead, samples=samples, samples_at_end=self._horizon())
        return events.ServersScaled(decision.servers, decision.why) if decision.servers > len(nodes) else None

    def _forecast_memory(
        self, nodes: list[RoleNode], tally: ProgressTally, usage: Mapping[Role, RoleUsage]
    ) -> tuple[memory.MemoryForecast, ...]:
        readings = [found for node in nodes if (found := self._reading(node, tally, usage)) is not None]
        if not self._seen or len(readings) != len(nodes):
            return ()
        rows, end = memory.fit(self._seen), self._horizon()
        return tuple(memory.forecast(reading, rows, samples_at_end=end) for reading in readings)

    def _horizon(self) -> float:
        return memory.horizon(self._seen, float(samples_in_all(self._record.book)))

    def _reading(
        self, node: RoleNode, tally: ProgressTally, usage: Mapping[Role, RoleUsage]
    ) -> memory.ServerMemory | None:
        used, report = usage.get(node.role), tally.reports.get(node.role)
        if used is None or not used.memory_limit or not used.memory or report is None:
            return None
        held = report.counters.get("table_bytes", 0.0)
        live = self._rollout.bytes_on(node.role.rank)
        return memory.ServerMemory(
            server=node.role.rank,
            live=live,
            held=held,
            used=max(float(used.memory), held),
            limit=float(used.memory_limit),
        )

    def _on_pace(self, nodes: list[RoleNode], usage: Mapping[Role, RoleUsage]) -> events.JobEvent | None:
        if not self.rules.servers:
            return None
        worst = self._far_behind(nodes, usage)
        if worst is not None:
            return events.ServerReplaced(worst.rank, worst.why, at_once=self._peers_have_room(worst.rank, nodes, usage))
        paces = [one for node in nodes if (one := self._pace(node, usage)) is not None]
        for verdict in hot_servers.judge(paces, self.rules):
            watched = self._watched[verdict.rank]
            watched.blamed = watched.blamed + 1 if verdict.cause is not hot_servers.Cause.NONE else 0
            if watched.blamed >= self.rules.times:
                if verdict.cause is hot_servers.Cause.HOT:
                    return events.DecisionMade(f"move slots away from server-{verdict.rank}", verdict.why)
                return events.ServerReplaced(verdict.rank, verdict.why)
        return None

    def _far_behind(self, nodes: list[RoleNode], usage: Mapping[Role, RoleUsage]) -> hot_servers.ServerVerdict | None:
        """Return the verdict on a server that was far slower than its peers in each of the last two reports. One
        slow report may only mean that the server waited for a core.
        """
        found = []
        for ago in (0, 1):
            paces = [pace for node in nodes if (pace := self._reported_pace(node, usage, ago)) is not None]
            found.append(hot_servers.far_behind(paces, self.rules))
        last, before = found
        return last if last is not None and before is not None and last.rank == before.rank else None

    def _quota(self, node: RoleNode, at_least_s: float) -> hot_servers.CpuQuotaUse | None:
        seen = self._watched[node.role.rank].measured
        earlier = [reading for reading in seen if reading.at <= seen[-1].at - at_least_s]
        if not earlier:
            return None
        seconds, first, last = seen[-1].at - earlier[-1].at, earlier[-1].usage, seen[-1].usage
        return hot_servers.CpuQuotaUse(
            rank=node.role.rank,
            due=seen[-1].due,
            cpu=(last.cpu_s - first.cpu_s) / seconds,
            throttled=(last.throttled_s - first.throttled_s) / seconds,
            seconds=seconds,
        )

    def _peers_have_room(self, rank: int, nodes: list[RoleNode], usage: Mapping[Role, RoleUsage]) -> bool:
        others = [usage.get(node.role) for node in nodes if node.role.rank != rank]
        room = [memory.room(usage.memory, usage.memory_limit) if usage else 0.0 for usage in others]
        return sum(room) >= memory.SLACK * self._rollout.bytes_on(rank)

    def _pace(self, node: RoleNode, usage: Mapping[Role, RoleUsage]) -> hot_servers.ServerPace | None:
        sums = self._watched[node.role.rank].sums
        if not sums or sums[-1].at - sums[0].at < self.rules.window_s / 2:
            return None
        usual = median(_ns_a_key(first, last) for first, last in itertools.pairwise(sums))
        return replace(_between(node, sums[0], sums[-1], usage), ns_a_key=usual)

    def _reported_pace(
        self, node: RoleNode, usage: Mapping[Role, RoleUsage], ago: int
    ) -> hot_servers.ServerPace | None:
        """Return the pace between the last two reports, or between the two reports before (`ago`). Return None if
        there are no measurements.
        """
        watched = self._watched[node.role.rank]
        if len(watched.sums) < ago + 2:
            return None
        first, last = watched.sums[-2 - ago], watched.sums[-1 - ago]
        return _between(node, first, last, usage) if last.at - first.at >= LATEST_S else None


def _between(
    node: RoleNode, first: ServerSums, last: ServerSums, usage: Mapping[Role, RoleUsage]
) -> hot_servers.ServerPace:
    seconds = last.at - first.at
    return hot_servers.ServerPace(
        rank=node.role.rank,
        keys_s=(last.keys - first.keys) / seconds,
        ns_a_key=_ns_a_key(first, last),
        cpu=(last.cpu_s - first.cpu_s) / seconds,
        cpu_limit=usage[node.role].cpu_limit if node.role in usage else None,
    )


def _ns_a_key(first: ServerSums, last: ServerSums) -> float:
    keys = last.keys - first.keys
    return (last.ns - first.ns) / keys if keys else 0.0


def samples_in_all(book: JobLedger) -> int:
    """Return the number of samples of all passes so far: trained, leased, and not yet leased. An open stream has no
    end."""
    if any(not partition.final for flow in book.flows() for partition in flow.partitions.values()):
        return FAR
    leased = sum(lease.end - lease.offset for _, _, lease in book.leases())
    return book.samples_done + leased + book.todo_samples
