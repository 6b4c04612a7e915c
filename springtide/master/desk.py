"""Answers every request of the job's members. Decides nothing itself: does what `job.state` and `data.book` say.

In: authenticated requests from `rpc.listener`, and `tick()` from `master.main`. Out: replies, and the job's story.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from springtide import errors
from springtide.data.book import Book
from springtide.domain.cluster import Placement, Role, RoleKind, RoleUsage
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.domain.leases import Failure, Holder, LeaseKey, Nothing, Progress, Verdict
from springtide.embedding import placement
from springtide.job import actions, events
from springtide.job.nodes import NodeState
from springtide.job.state import JobState
from springtide.master import meetings, tally
from springtide.rpc import messages
from springtide.rpc.listener import Peer
from springtide.telemetry.events import EventLog

log = logging.getLogger(__name__)

HOLD_LEASE_S = 1.0  # a lease request that must wait is held so long, so that idle workers do not ask in a tight loop


class Desk:
    """The master's state and the one function that answers requests."""

    def __init__(self, spec: JobSpec, story: EventLog, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.state = JobState(spec, started_at=clock())
        self.over = asyncio.Event()
        """Set when the agent has said that the master may go, or has gone itself."""
        self._story, self._clock = story, clock
        self._book = Book(workers=spec.workers)
        self._book_changed = asyncio.Condition()
        self._tally = tally.Tally()
        self._barriers = meetings.Barriers(spec.workers)
        self._shared = meetings.SharedValues()
        self._placed: asyncio.Future[tuple[Placement, tuple[str, ...]]] = asyncio.get_running_loop().create_future()
        self._ended_at: float | None = None
        self._usage: dict[Role, RoleUsage] = {}

    async def handle(self, peer: Peer, request: messages.Request) -> messages.Reply:
        """One request, one reply; waiting is allowed."""
        match request:
            case messages.JoinServer():
                return self._join_server(peer, request)
            case messages.JoinWorker():
                return await self._join_worker(peer, request)
            case messages.JoinAgent():
                peer.role = Role(RoleKind.AGENT)
                return messages.Ok()
            case messages.StatusRequest():
                return self.status()
            case messages.Stop():
                self._react(events.StopAsked(request.why))
                return messages.Ok()
            case messages.Fail():
                self._tell("failed", role=f"worker-{request.rank}", error=request.error, trace=request.trace)
                failed = Role(RoleKind.WORKER, request.rank)
                self._react(events.Failed(failed, request.error, request.trace, request.blame))
                return messages.Ok()
        role = peer.role
        if role is None:
            raise errors.BadInput(f"{type(request).__name__} from a process that has not joined")
        match role.kind:
            case RoleKind.AGENT:
                return self._from_agent(request)
            case RoleKind.SERVER:
                return await self._from_server(role, request)
            case _:
                return await self._from_worker(role, request)

    def lost(self, peer: Peer) -> None:
        """A member's connection has closed."""
        assert peer.role is not None
        if peer.role.kind is RoleKind.AGENT:
            log.warning("the agent has gone; so do I")
            self.over.set()
        else:
            self._react(events.HungUp(peer.role))

    def tick(self) -> None:
        """Let deadlines pass."""
        self._react(events.Tick())

    def status(self) -> messages.JobStatus:
        """The whole job at this moment."""
        now = self._ended_at or self._clock()
        totals = self._book.totals()
        return messages.JobStatus(
            name=self.spec.name,
            phase=self.state.phase,
            why=self.state.why,
            elapsed_s=now - self.state.started_at,
            trained_s=self._tally.trained_s,
            blame=self.state.blame,
            detail=self.state.detail,
            samples=self._tally.samples,
            samples_per_s=self._tally.samples_per_s(at=now),
            loss=self._tally.loss,
            metrics=self._tally.metrics,
            shards_done=totals.done,
            shards_leased=totals.leased,
            shards_total=totals.total,
            poisoned=self._book.poisoned(),
            epochs=self._book.epochs,
            members=tuple(
                messages.MemberView(
                    role=node.role,
                    alive=node.state is not NodeState.GONE,
                    joined=node.state in (NodeState.JOINED, NodeState.FINISHED),
                    report=self._tally.reports.get(node.role, messages.Report()),
                    state=node.state,
                    usage=self._usage.get(node.role),
                )
                for node in self.state.nodes.values()
            ),
        )

    # ---- members ----

    def _join_server(self, peer: Peer, request: messages.JoinServer) -> messages.ServerWelcome:
        role = Role(RoleKind.SERVER, request.rank)
        self._react(events.Joined(role))
        peer.role = role
        self._tell("joined", role=str(role), pid=request.pid)
        spec = self.spec
        return messages.ServerWelcome(
            job=spec.name, slots=spec.slots, seed=spec.seed, workers=spec.workers, sync=spec.sync,
            heartbeat_s=spec.heartbeat_s,
        )  # fmt: skip

    async def _join_worker(self, peer: Peer, request: messages.JoinWorker) -> messages.Welcome:
        role = Role(RoleKind.WORKER, request.rank)
        self._react(events.Joined(role))
        peer.role = role
        self._tell("joined", role=str(role), pid=request.pid)
        placed, addresses = await asyncio.shield(self._placed)
        self._react(events.Heard(role))  # it could send no heartbeat while it waited for the servers
        spec = self.spec
        return messages.Welcome(
            job=spec.name, rank=request.rank, workers=spec.workers, servers=addresses, placement=placed,
            slots=spec.slots, seed=spec.seed, sync=spec.sync, heartbeat_s=spec.heartbeat_s,
        )  # fmt: skip

    def _from_agent(self, request: messages.Request) -> messages.Reply:
        match request:
            case messages.Look():
                self._usage = {usage.role: usage for usage in request.usage}
                return messages.Outlook(self.status(), self.state.wanted())
            case messages.Exited():
                self._tell("exited", role=str(request.exit.role), how=str(request.exit))
                self._react(events.Gone(request.exit))
            case messages.Shutdown():
                self.over.set()
            case _:
                raise errors.BadInput(f"an agent may not ask for {type(request).__name__}")
        return messages.Ok()

    async def _from_server(self, role: Role, request: messages.Request) -> messages.Reply:
        match request:
            case messages.ServerReady():
                self._tell("ready", role=str(role), address=request.address)
                self._react(events.Ready(role, request.address))
                placed, _ = await asyncio.shield(self._placed)
                self._react(events.Heard(role))
                return messages.Placed(placed)
            case messages.Heartbeat():
                return await self._heartbeat(role, request)
            case _:
                raise errors.BadInput(f"a server may not ask for {type(request).__name__}")

    async def _from_worker(self, role: Role, request: messages.Request) -> messages.Reply:
        match request:
            case messages.LeaseRequest():
                await self._take_words(role, request.progress, request.failures)
                return await self._lease(role, request)
            case messages.Heartbeat():
                return await self._heartbeat(role, request)
            case messages.BarrierRequest():
                await self._barriers.arrive(request.name, role.rank)
            case messages.Share():
                await self._shared.share(request.key, request.value)
            case messages.Lookup():
                return messages.Found(await self._shared.lookup(request.key))
            case messages.Finish():
                await self._take_words(role, request.progress)
                self._take_report(role, request.report)
                self._tell("finished", role=str(role))
                if poisoned := self._book.poisoned():
                    self._tell("poisoned", shards=[str(each) for each in poisoned])
                    self._react(events.Failed(role, "; ".join(map(str, poisoned[:3])), "", Blame.USER))
                self._react(events.Finished(role))
            case _:
                raise errors.BadInput(f"a worker may not ask for {type(request).__name__}")
        return messages.Ok()

    # ---- shards and reports ----

    async def _lease(
        self, role: Role, request: messages.LeaseRequest
    ) -> messages.Leased | messages.Wait | messages.End | messages.Fenced:
        holder, known = Holder(role.rank), {LeaseKey(word.shard, word.first) for word in request.progress}
        try:
            async with asyncio.timeout(HOLD_LEASE_S):
                async with self._book_changed:
                    while True:
                        answer = self._book.lease(holder, request.card, request.most, self._clock(), known)
                        if answer is not Nothing.WAIT:
                            break
                        await self._book_changed.wait()
        except TimeoutError:
            return messages.Wait()
        if isinstance(answer, Nothing):
            return messages.Fenced() if answer is Nothing.FENCED else messages.End()
        self._tally.begin(at=self._clock())
        return messages.Leased(answer)

    async def _take_words(self, role: Role, words: Sequence[Progress], failures: Sequence[Failure] = ()) -> Verdict:
        holder = Holder(role.rank)
        verdict = self._book.report(holder, words, self._clock())
        failed = [failure for failure in failures if self._book.fail(holder, failure)]
        for failure in failed:
            self._tell("unreadable", role=str(role), **failure._asdict())
        if verdict.freed or failed:
            async with self._book_changed:
                self._book_changed.notify_all()
        return verdict

    async def _heartbeat(self, role: Role, request: messages.Heartbeat) -> messages.Pulse:
        self._react(events.Heard(role))
        self._take_report(role, request.report)
        verdict = Verdict()
        if role.kind is RoleKind.WORKER:
            verdict = await self._take_words(role, request.progress, request.failures)
        # a bsp group must stop at one step: its ranks learn of it by a lease that says End, not by the heartbeat
        drain = self.state.phase is Phase.DRAINING and not self._book.in_step
        return messages.Pulse(
            drain=drain, stop=self.state.phase.over, fenced=verdict.fenced, revoked=verdict.revoked,
            truncate=verdict.wishes,
        )  # fmt: skip

    def _take_report(self, role: Role, report: messages.Report | None) -> None:
        if report is not None:
            self._tally.take(role, report, at=self._clock())

    # ---- doing what job.state says ----

    def _react(self, event: events.Event) -> None:
        before = self.state.phase
        for action in self.state.handle(event, at=self._clock()):
            match action:
                case actions.PlaceSlots(addresses):
                    self._place(addresses)
                case actions.Drain(why):
                    log.info("draining: %s", why)
                    self._book.close()
                case actions.Conclude(phase, why, blame):
                    log.info("%s (%s): %s", phase, blame, why)
                    self._ended_at = self._clock()
        if self.state.phase is not before:
            self._tell("phase", phase=self.state.phase, why=self.state.why, samples=self._tally.samples)

    def _place(self, addresses: tuple[str, ...]) -> None:
        placed = placement.even(self.spec.slots, self.spec.servers)
        self._placed.set_result((placed, addresses))
        self._tell("placed", epoch=placed.epoch, servers=list(addresses))

    def _tell(self, kind: str, **fields: Any) -> None:
        """Write the story; a disk that takes no more fails the job, once."""
        try:
            self._story.write(kind, **fields)
        except errors.UserError as error:
            if not self.state.phase.over:
                log.error("%s", error)
                self.state.handle(events.Broken(str(error)), at=self._clock())
                self._ended_at = self._clock()
