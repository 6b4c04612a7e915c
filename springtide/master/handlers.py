"""Handles requests by message type: joins, and requests from servers, workers, the agent, and commands.

Each class has a table of handlers. A request that is missing from the table of its sender's kind is rejected.
"""

from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import evictions
from springtide.master.core.context import MasterContext
from springtide.master.core.progress import UsageTable
from springtide.master.core.record import JobRecord
from springtide.master.data.shared_values import ShufflerList, StalenessGate, ValueGatherer
from springtide.master.job_map import map_of
from springtide.master.parts import MasterParts
from springtide.master.servers.migration import SlotMigration
from springtide.rpc.messages import coordination, data_workers, messages
from springtide.rpc.messages.checkpoints import SaveReport, SaveRequest
from springtide.rpc.messages.types import JobStatus, MemberReport, Reply, Request, SlotsMoved
from springtide.rpc.transport.listener import Peer

# while a server is lost, seconds to hold the replies to heartbeats, so that members learn without delay that the server
# is back
HOLD_HEARTBEAT_S = 0.2
Handlers = Mapping[type[Any], Callable[..., Any]]


async def call(handlers: Handlers, sender: str, request: Request, *who: object) -> Reply:
    """Call the handler for the request's type. If the handler returns nothing, the reply is Ok."""
    handler = handlers.get(type(request))
    if handler is None:
        raise errors.BadInput(f"{sender} may not send {type(request).__name__}")
    reply = handler(*who, request)
    if isinstance(reply, CoroutineType):
        reply = await reply
    return reply if reply is not None else messages.Ok()


def take_report(context: MasterContext, parts: MasterParts, life: Life, report: MemberReport | None) -> None:
    if report is None:
        return
    role, incarnation, tally, now = life.role, life.incarnation, context.tally, context.clock()
    tally.take(role, report, at=now, incarnation=incarnation)
    parts.autoscaler.watching.on_report(role, incarnation, report, at=now)
    parts.data_workers.on_feed_state(role, incarnation, report.feed)
    parts.online.on_report(life, report, at=now)
    if (decision := tally.cache_decision()) is not None:
        context.apply(events.DecisionMade(*decision))
    tally.note(context.samples, at=now)


class ServerRequests:
    """Handlers of requests from parameter servers."""

    def __init__(self, context: MasterContext, parts: MasterParts) -> None:
        self._context, self._parts = context, parts
        self._handlers: Handlers = {
            messages.ServerReady: self._ready,
            messages.Heartbeat: self._heartbeat,
            SlotsMoved: lambda role, incarnation, request: parts.migration.moved(role, request),
            SaveRequest: parts.checkpoints.order_for,
            SaveReport: parts.checkpoints.on_report,
        }

    async def handle(self, role: Role, incarnation: int, request: Request) -> Reply:
        if type(request) not in self._handlers:
            return await self._parts.checkpoints.storing.answer(role, request)
        return await call(self._handlers, "a server", request, role, incarnation)

    async def _ready(self, role: Role, incarnation: int, request: messages.ServerReady) -> Reply:
        record = self._context.record
        await self._parts.recovery.ready(role, incarnation, request)
        await self._context.changed.until(lambda: record.slots.placement is not None)
        self._context.apply(events.RoleAlive(role, incarnation))
        assert record.slots.placement is not None
        return messages.PlacementReply(record.slots.placement)

    async def _heartbeat(self, role: Role, incarnation: int, request: messages.Heartbeat) -> Reply:
        state, migration = self._context.state, self._parts.migration
        self._context.apply(events.RoleAlive(role, incarnation))
        take_report(self._context, self._parts, Life(role, incarnation), request.report)
        migration.on_heartbeat(role, request.slots, request.holding)
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
        self._gate = gate = StalenessGate(context.changed)
        agreements = (
            coordination.ShareRequest,
            coordination.ValueRequest,
            coordination.ClaimRequest,
            coordination.ClaimDone,
        )
        feed_news = (data_workers.CannotFeed, data_workers.WorkerDecision, data_workers.TrainedWithout)
        self._handlers: Handlers = {
            messages.LeaseRequest: parts.leases.lease,
            coordination.CutRequest: parts.leases.cut,
            messages.Heartbeat: self._heartbeat,
            coordination.GroupRequest: parts.rendezvous.join,
            coordination.MeetRequest: parts.rendezvous.meet,
            coordination.AtStep: lambda holder, request: parts.checkpoints.at_step(request),
            coordination.Enter: lambda holder, request: gate.enter(holder, request.bound),
            coordination.Leave: lambda holder, request: gate.leave(holder),
            messages.EpochBegun: lambda holder, request: self._remember(holder.rank, request.objects, request.place),
            messages.FinishRequest: self._finish,
            coordination.GatherRequest: ValueGatherer(context).gather,
            **dict.fromkeys(agreements, parts.shared.answer),
            **dict.fromkeys(
                feed_news, lambda holder, request: parts.data_workers.on_trainer_report(_worker(holder), request)
            ),
        }
        context.subscribe(self._on_actions)

    async def handle(self, role: Role, incarnation: int, request: Request) -> Reply:
        return await call(self._handlers, "a worker", request, LeaseHolder(role.rank, incarnation))

    async def _heartbeat(self, holder: LeaseHolder, request: messages.Heartbeat) -> messages.HeartbeatReply:
        role, context, parts, state = _worker(holder), self._context, self._parts, self._context.state
        context.apply(events.RoleAlive(role, holder.incarnation))
        if state.healing:
            await context.changed.until(lambda: not state.healing, at_most_s=HOLD_HEARTBEAT_S)
        verdict = parts.leases.on_progress(holder, request.progress, request.failures, request.era)
        take_report(context, parts, Life(role, holder.incarnation), request.report)
        self._remember(holder.rank, request.objects, request.place)
        if parts.migration.worker_goes_by(holder.rank, holder.incarnation, request.epoch):
            parts.rendezvous.gather()
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
            save=parts.checkpoints.due_at_step(),
            feeders=parts.data_workers.news_for(request.feeders),
            shufflers=self._shufflers.on_address(holder, request.shuffle, request.shufflers),
        )

    def _finish(self, holder: LeaseHolder, request: messages.FinishRequest) -> None:
        role, context, book = _worker(holder), self._context, self._context.record.book
        self._parts.leases.on_progress(holder, request.progress, era=request.era)
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
        self._parts.checkpoints.poll()

    def _remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None) -> None:
        if objects or place is not None:
            self._context.journaled(self._context.record.scripts.remember, rank, objects, place)

    def _on_actions(self, done: list[actions.JobAction]) -> None:
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

    def __init__(self, context: MasterContext, parts: MasterParts, status: Callable[[], JobStatus]) -> None:
        self._context, self._parts, self._status = context, parts, status
        self._table = UsageTable()
        self.usage: dict[Role, RoleUsage] = {}
        self._handlers: Handlers = {
            messages.AgentPoll: self._poll,
            messages.RoleExitReport: self._exited,
            messages.ShutdownRequest: lambda request: context.over.set(),
        }

    async def handle(self, role: Role, incarnation: int, request: Request) -> Reply:
        return await call(self._handlers, "an agent", request)

    def note_own_usage(self, role: Role, incarnation: int, usage: RoleUsage | None) -> None:
        """Record resource use that a role measured itself because its agent is on another host."""
        self._table.on_report(role, incarnation, usage, at=self._context.clock())

    def _poll(self, request: messages.AgentPoll) -> messages.AgentOrders:
        now = self._context.clock()
        self._table.on_usages(request.usage)
        self.usage = self._table.now(at=now)
        self._parts.guards.glance(self.usage, now)
        return messages.AgentOrders(self._status(), self._context.state.wanted(), self._context.term)

    def _exited(self, request: messages.RoleExitReport) -> None:
        ended = request.exit
        role = str(ended.role)
        self._context.log_event("exited", role=role, incarnation=ended.incarnation, how=str(ended))
        self._table.on_exit(ended.role, ended.incarnation)
        self._context.apply(events.RoleExited(ended))


class CommandRequests:
    """Handlers of requests from processes that are not members: user commands, eviction notices, script errors."""

    def __init__(self, context: MasterContext, parts: MasterParts, status: Callable[[], JobStatus]) -> None:
        self._context, self._parts = context, parts
        self.handlers: Handlers = {
            messages.StatusRequest: lambda request: status(),
            messages.MapRequest: lambda request: map_of(context, parts),
            messages.CheckpointRequest: lambda request: parts.checkpoints.hasten(),
            messages.PlaceRequest: lambda request: messages.PlaceReply(context.record.scripts.place_for(request.rank)),
            messages.StopRequest: lambda request: context.apply(events.StopRequested(request.why)),
            messages.ScaleRequest: self._scale,
            messages.BoundsRequest: lambda request: change_bounds(context, request),
            messages.EvictionNotice: lambda request: answer_eviction(context, parts.migration, request),
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


class Membership:
    """Join handlers of one master."""

    def __init__(self, context: MasterContext, parts: MasterParts) -> None:
        self._context, self._record = context, context.record
        self._rounds, self._healing = parts.checkpoints, parts.recovery
        self._rollout, self._feeding = parts.migration, parts.data_workers
        self._spec = self._record.state.spec.for_members()

    async def server(self, peer: Peer, request: messages.JoinServer) -> messages.ServerWelcome:
        role = Role(RoleKind.SERVER, request.rank)
        self._join(peer, role, request)
        if not request.welcomed:
            await self._rollout.reckon(role, request.incarnation)
        state = self._record.state
        return messages.ServerWelcome(
            spec=self._spec,
            checkpoints=self._rounds.folder,
            run=self._rounds.saving.lineage.run,
            claim=self._rounds.saving.claim_name,
            restore=self._healing.to_bring_back(role) or self._rounds.restore_for(request.rank),
            placement=self._record.slots.placement if state.node(role).incarnation else None,
            generation=state.bsp.generation,
        )

    async def worker(self, peer: Peer, request: messages.JoinWorker) -> messages.WorkerWelcome:
        """Admit a worker that called `st.join()`, as soon as the servers are ready."""
        role, record = Role(RoleKind.WORKER, request.rank), self._record
        self._join(peer, role, request)
        waits = record.state.spec.gang
        await self._context.changed.until(
            lambda: record.slots.reachable and not (waits and record.state.phase is JobPhase.STARTING)
        )
        placed, servers = record.slots.placement, record.state.of_kind(RoleKind.SERVER)
        assert placed is not None
        # the worker could send no heartbeats while it waited
        self._context.apply(events.RoleAlive(role, request.incarnation))
        return messages.WorkerWelcome(
            spec=self._spec,
            rank=request.rank,
            servers=record.slots.addresses,
            placement=placed,
            incarnation=request.incarnation,
            lives=tuple(node.incarnation for node in servers),
            generation=record.state.bsp.generation,
            objects=record.scripts.objects_for(request.rank),
            package=self._feeding.package,
            place=record.scripts.place_for(request.rank),
            lived=request.rank in record.scripts.places,
        )

    def data_worker(self, peer: Peer, request: data_workers.JoinDataWorker) -> data_workers.DataWorkerWelcome:
        self._join(peer, Role(RoleKind.DATA_WORKER, request.rank), request)
        return self._feeding.welcome()

    def _join(self, peer: Peer, role: Role, request: messages.Join) -> None:
        new = self._record.state.node(role).state is NodeState.EXPECTED
        self._context.apply(events.RoleJoined(role, request.incarnation, request.pid, request.birth))
        peer.role, peer.incarnation = role, request.incarnation
        kind = "joined" if new else "reconnected"
        self._context.log_event(kind, role=str(role), pid=request.pid, incarnation=request.incarnation)


def change_bounds(context: MasterContext, request: messages.BoundsRequest) -> messages.Ok:
    state = context.record.state
    if not (state.spec.planning.on or state.spec.online.on):
        raise errors.BadInput(
            f"job {state.spec.name} has fixed numbers of workers and servers, so no planner uses bounds; "
            "change the numbers with `springtide scale`"
        )
    _check_bounds(context.record, request)
    context.apply(events.BoundsChanged(request.workers, request.servers, request.why))
    return messages.Ok()


def _check_bounds(record: JobRecord, request: messages.BoundsRequest) -> None:
    """Raise BadInput for bounds that the job cannot satisfy, before any of them is applied."""
    state = record.state
    if state.phase is JobPhase.DRAINING:
        raise errors.BadInput(f"job {state.spec.name} is draining: {state.why}")
    if request.workers is not None:
        record.book.check_group(request.workers[0])
    if request.servers is None:
        return
    least, most = request.servers
    if least > state.spec.slots:
        raise errors.BadInput(f"{least} servers for {state.spec.slots} slots: expected at most one server per slot")
    if not (least <= state.servers_wanted <= most or state.bsp.in_step or state.safety.placed):
        raise errors.BadInput(f"job {state.spec.name} is starting: its servers are not ready yet; try again")


def answer_eviction(
    context: MasterContext, moving: SlotMigration, request: messages.EvictionNotice
) -> messages.EvictionReply:
    state = context.record.state
    empty = request.role.rank not in set(context.record.slots.owners) and moving.informed
    event = events.EvictionNoticed(request.role, request.incarnation, request.why, empty=empty)
    if evictions.changes_anything(state, event):
        context.apply(event)
    return messages.EvictionReply(evictions.may_go(state, event))
