"""Handles requests by message type: from servers, workers, the agent, and commands.

In: requests of authenticated peers, from `master.dispatcher`. Out: replies. Each class has a table of handlers. A
request that is missing from the table of its sender's kind is rejected.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import EpochPlace
from springtide.domain.model.cache_rules import decided
from springtide.job.core import actions, events
from springtide.master.autoscale import bounds
from springtide.master.core import journal_entries
from springtide.master.core.context import MasterContext
from springtide.master.core.usages import UsageTable
from springtide.master.core.waiters import StalenessQueue
from springtide.master.data.shuffle_peers import ShufflerList
from springtide.master.parts import MasterParts
from springtide.master.servers import evictions
from springtide.rpc.messages import messages

# while a server is down, heartbeats are held this long, so that members learn of its return at once
HOLD_HEARTBEAT_S = 0.2
Handlers = Mapping[type[Any], Callable[..., Any]]


async def call(handlers: Handlers, sender: str, request: messages.Request, *who: object) -> messages.Reply:
    """Call the handler for the request's type. A handler without a result means Ok."""
    handler = handlers.get(type(request))
    if handler is None:
        raise errors.BadInput(f"{sender} may not ask for {type(request).__name__}")
    reply = handler(*who, request)
    if isinstance(reply, Awaitable):
        reply = await reply
    return reply if reply is not None else messages.Ok()


def take_report(context: MasterContext, parts: MasterParts, life: Life, report: messages.MemberReport | None) -> None:
    """Pass a member's report to all parts that measure."""
    if report is None:
        return
    role, incarnation, tally, now = life.role, life.incarnation, context.tally, context.clock()
    tally.take(role, report, at=now, incarnation=incarnation)
    parts.autoscaler.watching.heard(role, incarnation, report, at=now)
    parts.data_workers.heard(role, incarnation, report.feed)
    parts.partitions.heard(report.stream)
    parts.online.heard(life, report, at=now)
    if (use := tally.cache) is not None and (news := decided(tally.cache_on, use)) is not None:
        tally.cache_on = use.on
        context.apply(events.DecisionMade(*news))
    tally.note(context.samples, at=now)


class ServerRequests:
    """Handlers of requests from parameter servers."""

    def __init__(self, context: MasterContext, parts: MasterParts) -> None:
        self._context, self._parts = context, parts
        self._handlers: Handlers = {
            messages.ServerReady: self._ready,
            messages.Heartbeat: self._heartbeat,
            messages.SlotsMoved: lambda role, incarnation, request: parts.migration.moved(role, request),
            messages.SaveRequest: parts.checkpoints.order_for,
            messages.SaveReport: parts.checkpoints.heard,
        }

    async def handle(self, role: Role, incarnation: int, request: messages.Request) -> messages.Reply:
        if self._context.state.fenced(role, incarnation):
            raise errors.Fenced(f"{role} of incarnation {incarnation} was given up: its slots are with its next life")
        if type(request) not in self._handlers:
            return await self._parts.checkpoints.storing.answer(role, request)
        return await call(self._handlers, "a server", request, role, incarnation)

    async def _ready(self, role: Role, incarnation: int, request: messages.ServerReady) -> messages.Reply:
        record = self._context.record
        await self._parts.recovery.ready(role, incarnation, request)
        await self._context.changed.until(lambda: record.placement is not None)
        self._context.apply(events.RoleAlive(role, incarnation))
        assert record.placement is not None
        return messages.PlacementReply(record.placement)

    async def _heartbeat(self, role: Role, incarnation: int, request: messages.Heartbeat) -> messages.Reply:
        state, migration = self._context.state, self._parts.migration
        self._context.apply(events.RoleAlive(role, incarnation))
        take_report(self._context, self._parts, Life(role, incarnation), request.report)
        migration.heard(role, request.slots, request.holding)
        await migration.calling.gone_on(request.holding)
        await migration.hold(role, state.spec.heartbeat_s)
        return messages.HeartbeatReply(
            stop=state.phase.over, goal=migration.goal_for(role), hurry=self._parts.checkpoints.waited_for
        )


class WorkerRequests:
    """Handlers of requests from workers: leases, heartbeats, groups, and the end of a script."""

    def __init__(self, context: MasterContext, parts: MasterParts) -> None:
        self._context, self._parts = context, parts
        self._shufflers = ShufflerList(context.state)
        self._gate = gate = StalenessQueue(context.changed)
        agreements = (
            messages.BarrierRequest,
            messages.ShareRequest,
            messages.ValueRequest,
            messages.ClaimRequest,
            messages.ClaimDone,
        )
        feed_news = (messages.CannotFeed, messages.WorkerDecision, messages.TrainedWithout)
        self._handlers: Handlers = {
            messages.LeaseRequest: parts.leases.lease,
            messages.CutRequest: parts.leases.cut,
            messages.Heartbeat: self._heartbeat,
            messages.GroupRequest: parts.rendezvous.join,
            messages.MeetRequest: parts.rendezvous.meet,
            messages.AtStep: lambda holder, request: parts.bsp_checkpoints.reached(request),
            messages.Enter: lambda holder, request: gate.enter(holder, request.bound),
            messages.Leave: lambda holder, request: gate.leave(holder),
            messages.EpochBegun: lambda holder, request: self._remember(holder.rank, request.objects, request.place),
            messages.FinishRequest: self._finish,
            **dict.fromkeys(agreements, parts.shared.answer),
            **dict.fromkeys(feed_news, lambda holder, request: parts.data_workers.heed(_worker(holder), request)),
        }
        context.subscribe(self._on_actions)

    async def handle(self, role: Role, incarnation: int, request: messages.Request) -> messages.Reply:
        holder = LeaseHolder(role.rank, incarnation)
        if self._context.state.fenced(role, incarnation):
            if isinstance(request, messages.Heartbeat):
                return messages.HeartbeatReply(fenced=True)
            raise errors.Fenced(f"{holder} was given up: its work is with others, and it should leave")
        return await call(self._handlers, "a worker", request, holder)

    async def _heartbeat(self, holder: LeaseHolder, request: messages.Heartbeat) -> messages.HeartbeatReply:
        role, context, parts, state = _worker(holder), self._context, self._parts, self._context.state
        context.apply(events.RoleAlive(role, holder.incarnation))
        if state.healing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_HEARTBEAT_S):
                    await context.changed.until(lambda: not state.healing)
        verdict = parts.leases.words(holder, request.progress, request.failures, request.era)
        take_report(context, parts, Life(role, holder.incarnation), request.report)
        self._remember(holder.rank, request.objects, request.place)
        if parts.migration.worker_goes_by(holder.rank, holder.incarnation, request.epoch):
            parts.rendezvous.on_placement_known()
        return messages.HeartbeatReply(
            drain=state.draining(role),
            stop=state.phase.over,
            fenced=verdict.fenced,
            revoked=verdict.revoked,
            truncate=verdict.wishes,
            hurry=context.record.book.came_back(holder.rank),
            era=context.record.book.era,
            servers=parts.recovery.servers(),
            healing=state.healing,
            group_lost=state.bsp.generation if state.group_lost else 0,
            goal=parts.migration.news_for(request.epoch),
            save=parts.bsp_checkpoints.due(),
            feeders=parts.data_workers.news_for(request.feeders),
            shufflers=self._shufflers.heard(holder, request.shuffle, request.shufflers),
        )

    def _finish(self, holder: LeaseHolder, request: messages.FinishRequest) -> None:
        role, context, book = _worker(holder), self._context, self._context.record.book
        self._parts.leases.words(holder, request.progress, era=request.era)
        take_report(context, self._parts, Life(role, holder.incarnation), request.report)
        self._remember(holder.rank, request.objects, request.place)
        feed = request.report.feed if request.report is not None else None
        checked = {"checked": feed.checked} if feed is not None else {}
        context.log_event("finished", role=str(role), incarnation=holder.incarnation, **checked)
        totals, poisoned = book.totals(), book.poisoned()
        untrained = totals.total - totals.done - totals.poisoned
        given_up = "; ".join(map(str, poisoned[:3])) or context.record.all_left_out()
        if poisoned:
            context.log_event("poisoned", shards=[str(shard) for shard in poisoned])
        context.apply(events.ScriptFinished(role, holder.incarnation, untrained, given_up))
        self._parts.checkpoints.look()

    def _remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None) -> None:
        if objects or place is not None:
            with self._context.journaled(journal_entries.ObjectsEntry(rank, objects, place)):
                self._context.record.remember(rank, objects, place)

    def _on_actions(self, done: list[actions.Action]) -> None:
        fenced = [action for action in done if isinstance(action, actions.FenceWorker)]
        for fence in fenced:
            holder = LeaseHolder(fence.role.rank, fence.incarnation)
            self._context.tally.leave(fence.role)
            self._gate.leave(holder)
            self._parts.rendezvous.leave(holder)
        self._parts.rendezvous.gather()
        if fenced:
            self._parts.partitions.act(self._context.clock(), lost=True)


class AgentRequests:
    """Handlers of requests from the agent: resource use, wanted roles, and exits."""

    def __init__(self, context: MasterContext, parts: MasterParts, status: Callable[[], messages.JobStatus]) -> None:
        self._context, self._parts, self._status = context, parts, status
        self._table = UsageTable()
        self.usage: dict[Role, RoleUsage] = {}
        """Last measured use of each role."""
        self._handlers: Handlers = {
            messages.AgentPoll: self._poll,
            messages.RoleExitReport: self._exited,
            messages.ShutdownRequest: lambda request: context.over.set(),
        }

    async def handle(self, role: Role, incarnation: int, request: messages.Request) -> messages.Reply:
        return await call(self._handlers, "an agent", request)

    def note_own_usage(self, role: Role, incarnation: int, usage: RoleUsage | None) -> None:
        """Record the resource use that a role measured itself, because its agent is on another host."""
        self._table.heard(role, incarnation, usage, at=self._context.clock())

    def _poll(self, request: messages.AgentPoll) -> messages.AgentOrders:
        now = self._context.clock()
        self._table.looked(request.usage)
        self.usage = self._table.now(at=now)
        self._parts.guards.glance(self.usage, now)
        return messages.AgentOrders(self._status(), self._context.state.wanted(), self._context.term)

    def _exited(self, request: messages.RoleExitReport) -> None:
        ended = request.exit
        role = str(ended.role)
        self._context.log_event("exited", role=role, incarnation=ended.incarnation, how=str(ended))
        self._table.gone(ended.role, ended.incarnation)
        self._context.apply(events.RoleExited(ended))


class CommandRequests:
    """Handlers of requests that need no membership: user commands, eviction notices, script errors."""

    def __init__(self, context: MasterContext, parts: MasterParts, status: Callable[[], messages.JobStatus]) -> None:
        self._context, self._parts = context, parts
        self.handlers: Handlers = {
            messages.StatusRequest: lambda request: status(),
            messages.PlaceRequest: lambda request: messages.PlaceReply(context.record.place_for(request.rank)),
            messages.StopRequest: lambda request: context.apply(events.StopRequested(request.why)),
            messages.ScaleRequest: self._scale,
            messages.BoundsRequest: lambda request: bounds.answer(context, request),
            messages.EvictionNotice: lambda request: evictions.answer(context, parts.migration, request),
            messages.ScriptError: self._script_error,
        }

    def _scale(self, request: messages.ScaleRequest) -> None:
        context = self._context
        if request.servers is not None:
            context.apply(events.ServersScaled(request.servers, request.why, pinned=True))
        if request.data_workers is not None:
            self._parts.data_workers.scale(request.data_workers, request.why)
        if request.workers is not None:
            context.record.book.check_group(request.workers)
            context.apply(events.WorkersScaled(request.workers, request.why, pinned=True))

    def _script_error(self, request: messages.ScriptError) -> None:
        role = Role(RoleKind.WORKER, request.rank)
        if self._context.state.fenced(role, request.incarnation):
            return
        self._context.log_event("failed", role=str(role), error=request.error, trace=request.trace)
        failed = events.ScriptFailed(role, request.error, request.trace, request.blame, request.incarnation)
        self._context.apply(failed)


def _worker(holder: LeaseHolder) -> Role:
    return Role(RoleKind.WORKER, holder.rank)
