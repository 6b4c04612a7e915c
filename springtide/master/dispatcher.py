"""Dispatches every request of the job's members to its handler, and runs the master's periodic work.

The master sends a reply only after the changes behind the reply are journaled. Next: `master.handlers`, by message
type.
"""

import logging
import pathlib
import time

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.job.core import events
from springtide.job.state import JobState
from springtide.master.core.context import MasterContext
from springtide.master.core.progress import LoopLag
from springtide.master.core.record import JobRecord
from springtide.master.data.leases import LeaseBalancer
from springtide.master.data.shared_values import PackageStore
from springtide.master.handlers import AgentRequests, CommandRequests, Membership, ServerRequests, WorkerRequests, call
from springtide.master.parts import MasterParts, status_of
from springtide.rpc.messages import data_workers, messages
from springtide.rpc.messages.types import FilePart, JobStatus, Reply, Request
from springtide.rpc.transport.listener import Peer

log = logging.getLogger(__name__)

# seconds that a disconnected agent has to reconnect; after that, the master treats the job's host as lost
AGENT_GRACE_S = 10.0
# seconds; after a longer gap between two ticks, the master assumes that it was stopped or starved and received no
# heartbeats
AWAY_S = 1.0
FROM_ROLES = (messages.JoinServer, messages.JoinWorker, data_workers.JoinDataWorker, messages.ScriptError)
"""Requests that a role may send before it has joined."""
PACKAGES = (data_workers.PackageWritten, FilePart, data_workers.PackageAsk)
SNAPSHOT_ENTRIES = 5000  # journal entries between two snapshots; replaying this many takes at most two seconds


RULERS = (RoleKind.AGENT, RoleKind.MASTER)
"""Kinds that may order the job about. On Kubernetes the agent in the master's pod uses the master's certificate."""


def senders_of(request: Request) -> tuple[RoleKind, ...]:
    """Return the kinds of role that may send a request which names its sender or changes the job; empty for all other
    requests.
    """
    match request:
        case messages.JoinServer():
            return (RoleKind.SERVER,)
        case messages.JoinWorker() | messages.ScriptError():
            return (RoleKind.WORKER,)
        case data_workers.JoinDataWorker():
            return (RoleKind.DATA_WORKER,)
        case messages.EvictionNotice():
            return (request.role.kind, *RULERS)
        case (
            messages.JoinAgent()
            | messages.StopRequest()
            | messages.ScaleRequest()
            | messages.BoundsRequest()
            | messages.CheckpointRequest()
        ):
            return RULERS
    return ()


def check_certificate(peer: Peer, request: Request) -> None:
    """Raise `Forbidden` if the request names a role as its sender and the peer's certificate is for a different
    role.
    """
    if not peer.certified:
        return
    allowed = senders_of(request)
    if allowed and peer.certified not in allowed:
        raise errors.Forbidden(
            f"{type(request).__name__} came from {peer.address}, whose certificate is for a {peer.certified}; "
            f"only these roles may send it: {', '.join(allowed)}"
        )


class MasterService:
    """Request dispatcher of a master. The service picks the handler table by the sender's kind, and its tick runs every
    part of the master."""

    def __init__(self, context: MasterContext, parts: MasterParts, *, away_s: float = AWAY_S) -> None:
        self.context, self.parts, self._away_s = context, parts, away_s
        state = context.state
        status = JobStatus(state.spec.name, state.phase, state.why, 0.0)
        self._shown = messages.AgentOrders(status, state.wanted(), context.term)
        """Newest fully journaled reply to the agent, which is sent again while the disk is full. A master that takes
        over on a full disk asks the agent for the roles in the journal. Otherwise the agent would end all running
        roles.
        """
        self.lag = LoopLag(time.monotonic)
        self._agents: set[Peer] = set()
        self._agent_left_at: float | None = None
        self._ticked_at, self._stuck = context.clock(), ""
        self._balancer = LeaseBalancer(state.spec.stragglers)
        self._membership = Membership(context, parts)
        self._packages = PackageStore(pathlib.Path(parts.data_workers.package))
        self._agent = AgentRequests(context, parts, self.status)
        self._commands = CommandRequests(context, parts, self.status)
        self._by_kind = {
            RoleKind.AGENT: self._agent.handle,
            RoleKind.SERVER: ServerRequests(context, parts).handle,
            RoleKind.DATA_WORKER: parts.data_workers.answer,
            RoleKind.WORKER: WorkerRequests(context, parts).handle,
        }

    @property
    def record(self) -> JobRecord:
        return self.context.record

    @property
    def state(self) -> JobState:
        return self.context.record.state

    def take_over(self) -> None:
        """Continue with the record of an earlier master, and give all members time to reconnect."""
        context = self.context
        context.log_event("master", term=context.term)
        if self.record.book.passes:
            context.tally.note(self.record.book.samples_trained, at=self.record.span.last_at)
        context.apply(events.MasterTookOver(context.term))
        self.record.book.renew(context.clock())
        self.parts.checkpoints.take_over()

    async def handle(self, peer: Peer, request: Request) -> Reply:
        """Answer one request, possibly after a wait. All changes behind the reply are journaled before the master
        sends it.

        While the journal's disk is full, roles wait for their replies and train the leases that they hold. The agent
        and commands do not wait. The agent and commands get the last journaled status, with the reason why the job
        makes no decisions.
        """
        check_certificate(peer, request)
        if not isinstance(request, FROM_ROLES) and (peer.role is None or peer.role.kind is RoleKind.AGENT):
            return await self._handle_outsider(peer, request)
        try:
            return await self._answer(peer, request)
        finally:
            await self.context.written()

    async def _handle_outsider(self, peer: Peer, request: Request) -> Reply:
        context = self.context
        # the master journals nothing for these requests
        if isinstance(request, messages.JoinAgent | messages.ShutdownRequest):
            return await self._answer(peer, request)
        if not context.stuck:
            try:
                reply = await self._answer(peer, request)
            finally:
                written = await context.written_unless_stuck()
            if written:
                self._shown = reply if isinstance(reply, messages.AgentOrders) else self._shown
                return reply
        last = self._shown.status
        master = msgspec.structs.replace(last.master, disk_trouble=context.disk_trouble)
        shown = msgspec.structs.replace(last, master=master)
        match request:
            case messages.AgentPoll():
                return msgspec.structs.replace(self._shown, status=shown)
            case messages.StatusRequest():
                return shown
        raise errors.TemporaryError(f"the job accepts no commands while its journal cannot be written: {context.stuck}")

    async def _answer(self, peer: Peer, request: Request) -> Reply:
        match request:
            case messages.JoinServer():
                return await self._membership.server(peer, request)
            case messages.JoinWorker():
                return await self._membership.worker(peer, request)
            case data_workers.JoinDataWorker():
                return self._membership.data_worker(peer, request)
            case messages.JoinAgent():
                peer.role = Role(RoleKind.AGENT)
                self._agents.add(peer)
                self._agent_left_at = None
                return messages.Ok()
        if type(request) in self._commands.handlers:
            return await call(self._commands.handlers, "a command", request)
        if peer.role is None:
            raise errors.BadInput(f"{type(request).__name__} from a process that has not joined")
        if isinstance(request, messages.Heartbeat):
            self._agent.note_own_usage(peer.role, peer.incarnation, request.usage)
        if isinstance(request, PACKAGES):
            return await self._packages.answer(request)
        if peer.role.kind is not RoleKind.AGENT and self.state.fenced(peer.role, peer.incarnation):
            raise errors.Fenced(f"{peer.role} of incarnation {peer.incarnation} was fenced; it must exit")
        return await self._by_kind[peer.role.kind](peer.role, peer.incarnation, request)

    def lost(self, peer: Peer) -> None:
        """Handle a closed connection. The master decides nothing at this moment, because the member may reconnect.
        Otherwise the agent reports the member's exit, or the member misses heartbeats.
        """
        if peer in self._agents:
            self._agents.discard(peer)
            if not self._agents:
                self._agent_left_at = self.context.clock()

    def tick(self) -> None:
        context, parts, book = self.context, self.parts, self.record.book
        context.log_delayed_events()
        if context.stuck:
            self._stuck = context.stuck
            return
        if self._stuck:
            context.log_event("disk_full", why=f"the job continues; the problem was: {self._stuck}")
            self._stuck = ""
            book.renew(context.clock())  # holders of leases could not report while no master ran
        now = context.clock()
        away_s, self._ticked_at = now - self._ticked_at - self._away_s, now
        if away_s > 0:
            log.warning("the master was stopped, starved or waiting for its disk for %.1f s", away_s + self._away_s)
            self.state.forgive(away_s)
        if self._agent_left_at is not None and now - self._agent_left_at > AGENT_GRACE_S:
            log.warning("the agent has disconnected; the master exits")
            context.over.set()
        for event in self.state.due(at=now):
            context.apply(event)
        if expired := book.expired(now):
            context.journaled(book.take_back, expired)
            context.changed.wake_all()
        usage = self._agent.usage
        self._balancer.act(context, now)
        parts.partitions.act(now)
        parts.checkpoints.poll()
        parts.migration.tick()
        parts.guards.poll(context.tally, usage, now)
        parts.online.tick(now, moving=parts.migration.moving)
        if not parts.online.on or self.state.phase.over:  # an online job has its own autoscaler
            parts.autoscaler.tick(usage, parts.data_workers.share)
        parts.data_workers.tick(usage)
        self._save_snapshot()

    def _save_snapshot(self) -> None:
        journal = self.context.journal
        if journal is not None and journal.since_snapshot >= SNAPSHOT_ENTRIES and journal.idle:
            try:
                journal.save(self.record.to_bytes())
            except errors.SpringtideError as error:
                log.warning("the journal's snapshot could not be written: %s", error)

    def status(self) -> JobStatus:
        return status_of(self.context, self.parts, self._agent.usage, lag_s=self.lag.longest_s)
