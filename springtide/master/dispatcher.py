"""Answers every request of the job's members. Decides nothing itself: does what `job.state` and
`data.ledger.job_ledger` say.

In: authenticated requests from `rpc.transport.listener`, and `tick()` from `master.main`. Out: replies, and the job's
story. What must survive goes through `master.core.record` and its journal, and no reply leaves before it is written
there.
"""

import asyncio
import contextlib
import logging
import pathlib
import time
from collections.abc import Callable

import msgspec

from springtide import errors
from springtide.checkpoint.transfer.claims import Claim
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.data.epochs import EpochPlace
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.model.cache_rules import decided
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import actions, events
from springtide.job.state import JobState
from springtide.master import status as standing
from springtide.master import story
from springtide.master.autoscale import bounds, online_loop
from springtide.master.autoscale.loop import AdviserSetup, Autoscaler, Hands
from springtide.master.checkpoint.bsp_stop import BspCheckpoints
from springtide.master.checkpoint.round import CheckpointStore
from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core import journal_entries, progress, waiters
from springtide.master.core.context import MasterContext
from springtide.master.core.journal import Journal
from springtide.master.core.journal_writer import JournalWriter
from springtide.master.core.loop_lag import LoopLag
from springtide.master.core.record import JobRecord
from springtide.master.core.usages import UsageTable
from springtide.master.data import stragglers
from springtide.master.data.data_workers import DataWorkerManager
from springtide.master.data.leases import LeaseService
from springtide.master.data.packages import PackageStore
from springtide.master.data.partitions import PartitionAssigner
from springtide.master.data.shared_values import SharedValues
from springtide.master.data.shuffle_peers import ShufflerList
from springtide.master.membership import Membership
from springtide.master.servers import bsp_group, evictions
from springtide.master.servers.guards import ServerGuards
from springtide.master.servers.migration import SlotMigration
from springtide.master.servers.recovery import ServerRecovery
from springtide.rpc.messages import messages
from springtide.rpc.transport.listener import Peer
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)

HOLD_HEARTBEAT_S = 0.2  # one that comes while a server is away, so that its next life is known as soon as it is there
AGENT_GRACE_S = 10.0  # an agent that has hung up may come back within this time; else the job has lost its host
AWAY_S = 1.0  # between two ticks: more than that, and the master was stopped or starved, and could hear nobody
FROM_ROLES = (messages.JoinServer, messages.JoinWorker, messages.JoinDataWorker, messages.ScriptError)
"""Requests of roles that have not joined yet."""
SNAPSHOT_ENTRIES = 5000  # of the journal: going through so many again takes a second or two at the most


class MasterService:
    """The master's state and the one function that answers requests."""

    def __init__(
        self,
        record: JobRecord,
        story: EventLog,
        clock: Callable[[], float],
        journal: Journal | None = None,
        term: int = 1,
        saving: CheckpointStore | None = None,
        advised: AdviserSetup | None = None,
        away_s: float = AWAY_S,
    ) -> None:
        self.record, self.term, self._away_s = record, term, away_s
        self.over = asyncio.Event()  # set when the master may go
        self._clock, self._journal = clock, journal
        pen = self._pen = JournalWriter(record, story, clock, journal, leave=self.over.set)
        self.tell, self._kept = pen.tell, pen.kept
        state = record.state
        self._shown = messages.AgentOrders(messages.JobStatus(state.spec.name, state.phase, state.why, 0.0), term=term)
        """The newest outlook that the journal knows all of: what is shown while its disk is full."""
        self._changed = waiters.ChangeSignal()
        self._balance = stragglers.LeaseBalancer(record.state.spec.stragglers)
        self._tally, self._gate = progress.ProgressTally(), waiters.StalenessQueue(self._changed)
        self._forming = bsp_group.BspRendezvous(
            record, self._changed, self._happen,
            self._kept, clock, lambda: self._stepping.due(last=True),
        )  # fmt: skip
        self._usage: dict[Role, RoleUsage] = {}
        self._usages = UsageTable()
        self._agents: set[Peer] = set()
        self._agent_left_at: float | None = None
        self._ticked_at, self._stuck = clock(), ""
        self.lag = LoopLag(time.monotonic)
        self._agreeing = SharedValues(record, self._changed, kept=self._kept)
        saving = saving or CheckpointStore(CheckpointRules(), pathlib.Path(), Claim(run="", job=record.state.spec.name))
        doors = MasterContext(
            record=record, changed=self._changed, happen=self._happen, kept=self._kept, tell=self.tell
        )
        self._doors, self.rounds = doors, CheckpointSchedule(saving, doors, clock)
        self._stepping = BspCheckpoints(record, self.rounds, self._changed, clock)
        self._healing = ServerRecovery(
            record, str(saving.folder.absolute()), saving.lineage,
            kept=self._kept, tell=self.tell, happen=self._happen, went_back=self.rounds.went_back,
        )  # fmt: skip
        self._leasing = LeaseService(doors, self._healing, clock, look=self.rounds.look)
        self._assigning = PartitionAssigner(doors, self._leasing.asked_at, slow=lambda: self.online.slow)
        self._rollout = SlotMigration(doors, self._forming, term=term)
        self._guards = ServerGuards(record, self._rollout, self._happen)
        self.autoscale = Autoscaler(
            record,
            self._guards,
            advised,
            Hands(happen=self._happen, tell=self.tell, clock=clock, moving=lambda: self._rollout.moving),
        )
        self._feeding = DataWorkerManager(doors, self._agreeing, clock, story.path.parent, self.autoscale)
        self._packaging = PackageStore(pathlib.Path(self._feeding.package))
        self._shufflers = ShufflerList(record.state)
        self.online = online_loop.open_autoscaler(doors, clock=clock, folder=story.path.parent)
        self._joining = Membership(
            doors, rounds=self.rounds, healing=self._healing, rollout=self._rollout, feeding=self._feeding
        )

    @property
    def spec(self) -> JobSpec:
        """The job as it was asked for."""
        return self.record.state.spec

    @property
    def state(self) -> JobState:
        """The job's state machine."""
        return self.record.state

    def take_over(self) -> None:
        """A new master goes on with the record of the one before: everyone has time to call in again."""
        self.tell("master", term=self.term)
        if self.record.book.passes:
            self._tally.note(self.record.book.samples_trained, at=self.record.last_at)
        self._happen(events.MasterTookOver(self.term))
        self.record.book.renew(self._clock())
        self.rounds.take_over()

    async def handle(self, peer: Peer, request: messages.Request) -> messages.Reply:
        """One request, one reply; waiting is allowed. What the reply rests on is written before it leaves.

        While the journal's disk is full, roles wait for their replies and train what they hold leases of. The agent
        and commands do not wait: they are shown the job as it was, and why it makes no decisions.
        """
        if not isinstance(request, FROM_ROLES) and (peer.role is None or peer.role.kind is RoleKind.AGENT):
            return await self._handle_outsider(peer, request)
        try:
            return await self._answer(peer, request)
        finally:
            await self._pen.written()

    async def _handle_outsider(self, peer: Peer, request: messages.Request) -> messages.Reply:
        if isinstance(request, messages.JoinAgent | messages.ShutdownRequest):  # they change nothing that is kept
            return await self._answer(peer, request)
        if not self._pen.stuck:
            try:
                reply = await self._answer(peer, request)
            finally:
                written = await self._pen.written_unless_stuck()
            if written:
                self._shown = reply if isinstance(reply, messages.AgentOrders) else self._shown
                return reply
        shown = msgspec.structs.replace(self._shown.status, disk_trouble=self._pen.trouble)
        match request:
            case messages.AgentPoll():
                return msgspec.structs.replace(self._shown, status=shown)
            case messages.StatusRequest():
                return shown
        raise errors.TemporaryError(f"the job takes no orders while its journal cannot be written: {self._pen.stuck}")

    async def _answer(self, peer: Peer, request: messages.Request) -> messages.Reply:
        match request:
            case messages.JoinServer():
                return await self._joining.server(peer, request)
            case messages.JoinWorker():
                return await self._joining.worker(peer, request)
            case messages.JoinDataWorker():
                return self._joining.data_worker(peer, request)
            case messages.JoinAgent():
                peer.role = Role(RoleKind.AGENT)
                self._agents.add(peer)
                self._agent_left_at = None
                return messages.Ok()
            case messages.StatusRequest():
                return self.status()
            case messages.PlaceRequest():
                return messages.PlaceReply(self.record.place_for(request.rank))
            case messages.StopRequest():
                self._happen(events.StopRequested(request.why))
                return messages.Ok()
            case messages.ScaleRequest():
                if request.servers is not None:
                    self._happen(events.ServersScaled(request.servers, request.why, pinned=True))
                if request.data_workers is not None:
                    self._feeding.scale(request.data_workers, request.why)
                if request.workers is not None:
                    self.record.book.check_group(request.workers)
                    self._happen(events.WorkersScaled(request.workers, request.why, pinned=True))
                return messages.Ok()
            case messages.BoundsRequest():
                return bounds.answer(self._doors, request)
            case messages.EvictionNotice():
                return evictions.answer(self._doors, self._rollout, request)
            case messages.ScriptError():
                role = Role(RoleKind.WORKER, request.rank)
                if self.state.fenced(role, request.incarnation):
                    return messages.Ok()
                self.tell("failed", role=str(role), error=request.error, trace=request.trace)
                self._happen(
                    events.ScriptFailed(role, request.error, request.trace, request.blame, request.incarnation)
                )
                return messages.Ok()
        if peer.role is None:
            raise errors.BadInput(f"{type(request).__name__} from a process that has not joined")
        if isinstance(request, messages.Heartbeat):
            self._usages.heard(peer.role, peer.incarnation, request.usage, at=self._clock())
        if isinstance(request, messages.PackageWritten | messages.PackagePart | messages.PackageAsk):
            return await self._packaging.answer(request)
        match peer.role.kind:
            case RoleKind.AGENT:
                return self._from_agent(request)
            case RoleKind.SERVER:
                return await self._from_server(peer.role, peer.incarnation, request)
            case RoleKind.DATA_WORKER:
                return await self._feeding.answer(peer.role, peer.incarnation, request)
            case _:
                return await self._from_worker(peer.role, LeaseHolder(peer.role.rank, peer.incarnation), request)

    def lost(self, peer: Peer) -> None:
        """A member's connection has closed: it will be back, or its agent says how it ended, or its silence does."""
        if peer in self._agents:
            self._agents.discard(peer)
            if not self._agents:
                self._agent_left_at = self._clock()

    def tick(self) -> None:
        """Let deadlines pass; not while nothing can be kept: the time until then counts for nobody."""
        self._pen.tell_rest()
        if self._pen.stuck:
            self._stuck = self._pen.stuck
            return
        if self._stuck:
            self.tell("disk_full", why=f"the job goes on; until now it could not: {self._stuck}")
            self._stuck = ""
            self.record.book.renew(self._clock())  # its holders could not be heard
        now = self._clock()
        away_s, self._ticked_at = now - self._ticked_at - self._away_s, now
        if away_s > 0:
            log.warning("this process did not run, or decided nothing, for %.1f s", away_s + self._away_s)
            self.state.forgive(away_s)
        if self._agent_left_at is not None and now - self._agent_left_at > AGENT_GRACE_S:
            log.warning("the agent has gone; so do I")
            self.over.set()
        for event in self.state.due(at=now):
            self._happen(event)
        if expired := self.record.book.expired(now):
            with self._kept(journal_entries.ExpireEntry(expired)):
                self.record.book.take_back(expired)
            self._changed.turn()
        self._balance.act(self._doors, now)
        self._assigning.act(now)
        self.rounds.look()
        self._rollout.tick()
        self._guards.look(self._tally, self._usage, now)
        self.online.tick(now, moving=self._rollout.moving)
        if not self.online.on or self.state.phase.over:  # a stream asks for workers of its own
            self.autoscale.tick(self._usage)
        self._feeding.tick(self._usage)
        journal = self._journal
        if journal is not None and journal.since_snapshot >= SNAPSHOT_ENTRIES and journal.idle:
            try:
                journal.save(self.record.to_bytes())
            except errors.SpringtideError as error:
                log.warning("no snapshot of the journal: %s", error)
                journal.since_snapshot = 0  # it is tried again after as many entries

    def status(self) -> messages.JobStatus:
        """The whole job at this moment."""
        now = self._clock()
        return standing.status_of(
            self.record,
            self._tally,
            self._usage,
            term=self.term,
            now=now,
            lag_s=self.lag.longest_s,
            rounds=self.rounds,
            moving=self._rollout.moving,
            autoscale=self.autoscale,
            feeding=self._feeding,
            online=self.online.status(now),
            disk_trouble=self._pen.trouble,
        )

    # ---- members ----

    def _from_agent(self, request: messages.Request) -> messages.Reply:
        match request:
            case messages.AgentPoll():
                self._usages.looked(request.usage)
                self._usage = self._usages.now(at=self._clock())
                self._guards.glance(self._usage, self._clock())
                return messages.AgentOrders(self.status(), self.state.wanted(), self.term)
            case messages.RoleExitReport():
                ended = request.exit
                self.tell("exited", role=str(ended.role), incarnation=ended.incarnation, how=str(ended))
                self._usages.gone(ended.role, ended.incarnation)
                self._happen(events.RoleExited(ended))
            case messages.ShutdownRequest():
                self.over.set()
            case _:
                raise errors.BadInput(f"an agent may not ask for {type(request).__name__}")
        return messages.Ok()

    async def _from_server(self, role: Role, incarnation: int, request: messages.Request) -> messages.Reply:
        if self.state.fenced(role, incarnation):
            raise errors.Fenced(f"{role} of incarnation {incarnation} was given up: its slots are with its next life")
        match request:
            case messages.ServerReady():
                await self._healing.ready(role, incarnation, request)
                await self._changed.until(lambda: self.record.placement is not None)
                self._happen(events.RoleAlive(role, incarnation))
                assert self.record.placement is not None
                return messages.PlacementReply(self.record.placement)
            case messages.Heartbeat():
                self._happen(events.RoleAlive(role, incarnation))
                self._take_report(role, incarnation, request.report)
                self._rollout.heard(role, request.slots, request.holding)
                await self._rollout.calling.gone_on(request.holding)
                await self._rollout.hold(role, self.spec.heartbeat_s)
                return messages.HeartbeatReply(
                    stop=self.state.phase.over, goal=self._rollout.goal_for(role), hurry=self.rounds.waited_for
                )
            case messages.SlotsMoved():
                self._rollout.moved(role, request)
                return messages.Ok()
            case messages.SaveRequest():
                return await self.rounds.order_for(role, incarnation, request)
            case messages.SaveReport():
                self.rounds.heard(role, incarnation, request)
                return messages.Ok()
            case _:
                return await self.rounds.storing.answer(role, request)

    async def _from_worker(self, role: Role, holder: LeaseHolder, request: messages.Request) -> messages.Reply:
        if self.state.fenced(role, holder.incarnation):
            if isinstance(request, messages.Heartbeat):
                return messages.HeartbeatReply(fenced=True)
            raise errors.Fenced(f"{holder} was given up: its work is with others, and it should leave")
        match request:
            case messages.LeaseRequest():
                return await self._leasing.lease(holder, request)
            case messages.CutRequest():
                return self._leasing.cut(holder, request)
            case messages.Heartbeat():
                return await self._heartbeat(role, holder, request)
            case (
                messages.BarrierRequest()
                | messages.ShareRequest()
                | messages.ValueRequest()
                | messages.ClaimRequest()
                | messages.ClaimDone()
            ):
                return await self._agreeing.answer(holder, request)
            case messages.GroupRequest():
                return await self._forming.join(holder, request)
            case messages.MeetRequest():
                return await self._forming.meet(holder, request)
            case messages.AtStep():
                return await self._stepping.reached(request)
            case messages.Enter():
                await self._gate.enter(holder, request.bound)
            case messages.Leave():
                self._gate.leave(holder)
            case messages.CannotFeed() | messages.WorkerDecision() | messages.TrainedWithout():
                self._feeding.heed(role, request)
            case messages.EpochBegun():
                self._remember(holder.rank, request.objects, request.place)
            case messages.FinishRequest():
                self._finish(role, holder, request)
            case _:
                raise errors.BadInput(f"a worker may not ask for {type(request).__name__}")
        return messages.Ok()

    def _finish(self, role: Role, holder: LeaseHolder, request: messages.FinishRequest) -> None:
        self._leasing.words(holder, request.progress, era=request.era)
        self._take_report(role, holder.incarnation, request.report)
        self._remember(holder.rank, request.objects, request.place)
        feed = request.report.feed if request.report is not None else None
        checked = {"checked": feed.checked} if feed is not None else {}
        self.tell("finished", role=str(role), incarnation=holder.incarnation, **checked)
        totals, poisoned = self.record.book.totals(), self.record.book.poisoned()
        untrained = totals.total - totals.done - totals.poisoned
        given_up = "; ".join(map(str, poisoned[:3])) or self.record.all_left_out()
        if poisoned:
            self.tell("poisoned", shards=[str(each) for each in poisoned])
        self._happen(events.ScriptFinished(role, holder.incarnation, untrained, given_up))
        self.rounds.look()

    # ---- shards and reports ----

    async def _heartbeat(self, role: Role, holder: LeaseHolder, request: messages.Heartbeat) -> messages.HeartbeatReply:
        self._happen(events.RoleAlive(role, holder.incarnation))
        if self.state.healing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_HEARTBEAT_S):
                    await self._changed.until(lambda: not self.state.healing)
        verdict = self._leasing.words(holder, request.progress, request.failures, request.era)
        self._take_report(role, holder.incarnation, request.report)
        self._remember(holder.rank, request.objects, request.place)
        self._rollout.worker_goes_by(holder.rank, holder.incarnation, request.epoch)
        return messages.HeartbeatReply(
            drain=self.state.draining(role),
            stop=self.state.phase.over,
            fenced=verdict.fenced,
            revoked=verdict.revoked,
            truncate=verdict.wishes,
            hurry=self.record.book.came_back(holder.rank),
            era=self.record.book.era,
            servers=self._healing.servers(),
            healing=self.state.healing,
            group_lost=self.state.bsp.generation if self.state.group_lost else 0,
            goal=self._rollout.news_for(request.epoch),
            save=self._stepping.due(),
            feeders=self._feeding.news_for(request.feeders),
            shufflers=self._shufflers.heard(holder, request.shuffle, request.shufflers),
        )

    def _take_report(self, role: Role, incarnation: int, report: messages.MemberReport | None) -> None:
        if report is not None:
            tally = self._tally
            tally.take(role, report, at=self._clock(), incarnation=incarnation)
            self.autoscale.watching.heard(role, incarnation, report, at=self._clock())
            self._feeding.heard(role, incarnation, report.feed)
            self._assigning.heard(report.stream)
            self.online.heard(Life(role, incarnation), report, at=self._clock())
            if (use := tally.cache) is not None and (news := decided(tally.cache_on, use)) is not None:
                tally.cache_on = use.on
                self._happen(events.DecisionMade(*news))
            tally.note(standing.samples_of(self.record, tally), at=self._clock())

    def _remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None) -> None:
        if objects or place is not None:
            with self._kept(journal_entries.ObjectsEntry(rank, objects, place)):
                self.record.remember(rank, objects, place)

    # ---- doing what job.state says, and keeping it ----

    def _happen(self, event: events.Event) -> None:
        before, now = self.state.phase, self._clock()
        with self._kept(None if isinstance(event, events.RoleAlive) else journal_entries.event_entry(event, now)):
            done = self.record.happen(event, now)
        for action in done:
            told = story.told(action)
            if told is not None:
                self.tell(told.kind, **told.fields)
            if isinstance(action, actions.FenceWorker):
                self._tally.leave(action.role)
                self._gate.leave(LeaseHolder(action.role.rank, action.incarnation))
                self._forming.leave(LeaseHolder(action.role.rank, action.incarnation))
        if done:
            self._changed.turn()
            self._forming.gather()
        if any(isinstance(action, actions.FenceWorker) for action in done):
            self._assigning.act(now, lost=True)
        if self.state.phase is not before:
            self._changed.turn()
            samples = standing.samples_of(self.record, self._tally)
            self.tell("phase", phase=self.state.phase, why=self.state.why, samples=samples)
