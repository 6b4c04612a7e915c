"""A worker's link to its master. The link joins the job, sends heartbeats, and reports the end of the script.

Out: `rpc.messages` over `rpc.transport.channel`, or to the `LocalMaster` without a cluster. Only the process that
joined may use the link, because a forked DataLoader child does not own the socket. Next: clients.py,
subscriptions.py.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from springtide import config, errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Placement, RoleKind
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import Blame, JobSpec
from springtide.rpc.messages import coordination, messages
from springtide.rpc.messages.checkpoints import MissingFiles
from springtide.rpc.messages.data_workers import PackageWritten
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport import channel
from springtide.telemetry.host.usage import OwnUsage
from springtide.telemetry.output import redact
from springtide.worker.link.clients import GroupClient, LeaseClient, ReportClient, SharedValues, StopState
from springtide.worker.link.subscriptions import Subscriptions

_current: "MasterLink | None" = None
ALONE = LeaseHolder(rank=0)


def current(settings: config.Settings | None = None) -> "MasterLink":
    """Return the only link of this process; the first call creates it. The link leads to the master in the environment,
    or else to a local master.
    """
    global _current
    if _current is None:
        _current = open_link(settings or config.load())
    return _current


def opened() -> "MasterLink | None":
    """Return this process's link if it exists and has joined the job."""
    return _current if _current is not None and _current.joined else None


def open_link(settings: config.Settings) -> "MasterLink":
    if not settings.master:
        return local_link(settings)
    secret = config.job_secret(settings)
    to_master = channel.for_member(settings, secret)
    identity = WorkerIdentity(
        config.own_rank(settings, RoleKind.WORKER),
        settings.incarnation,
        secret,
        settings.tls,
        channel.own_host(settings, to_master),
    )
    return MasterLink(to_master, identity, OwnUsage(settings))


class LocalMaster:
    """Master inside a worker that trains alone, without servers. This master grants all shards to the worker."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings
        self._book = JobLedger(workers=1)
        self._shared: dict[str, bytes] = {}

    def ask(self, request: Any) -> Any:
        """Answer a request. Answer Ok to a request that has no specific reply."""
        answers: dict[type, Callable[[Any], Reply]] = {
            messages.JoinWorker: lambda _: self.welcome(),
            messages.LeaseRequest: self.lease,
            coordination.CutRequest: lambda asked: coordination.CutsNoted(self._book.cut(ALONE, asked.cuts), asked.era),
            coordination.ShareRequest: self.share,
            coordination.ValueRequest: self.lookup,
            coordination.ClaimRequest: lambda _: coordination.ClaimReply(True),
            coordination.GatherRequest: lambda asked: coordination.GatherReply({0: asked.value}),
            coordination.GroupRequest: self.form,
            coordination.MeetRequest: self.meet,
            coordination.AtStep: lambda _: messages.HeartbeatReply(),  # without a cluster there are no checkpoints
            messages.PlaceRequest: lambda _: messages.PlaceReply(),
            PackageWritten: lambda _: MissingFiles(()),
        }
        answer = answers.get(type(request))
        return messages.Ok() if answer is None else answer(request)

    def welcome(self) -> WorkerWelcome:
        """Return the welcome for rank 0 of 1, in which the store in this process owns all slots."""
        settings = self._settings
        return WorkerWelcome(
            spec=JobSpec(
                name="alone",
                slots=settings.slots,
                seed=settings.seed,
                sync="bsp" if settings.sync == "bsp" else "async",
            ),
            rank=0,
            servers=(),
            placement=Placement(epoch=0, servers=1, server_of_slot=(0,) * settings.slots),
        )

    def lease(self, asked: messages.LeaseRequest) -> Reply:
        self._book.report(ALONE, asked.progress, at=0.0)
        if asked.ends is not None:
            self._book.end(ALONE, asked.card, asked.ends, asked.short)
        answer = self._book.lease(ALONE, asked.card, asked.most, at=0.0, seen=asked.seen)
        if isinstance(answer, NoLease):
            return (
                messages.WaitReply() if answer is NoLease.WAIT and asked.card.stream is not None else messages.DataEnd()
            )
        return messages.LeaseReply(answer)

    def share(self, asked: coordination.ShareRequest) -> Reply:
        self._shared[asked.key] = asked.value
        return messages.Ok()

    def lookup(self, asked: coordination.ValueRequest) -> Reply:
        if asked.key not in self._shared:
            raise errors.UnknownName("shared value", asked.key, self._shared)
        return coordination.ValueFound(self._shared[asked.key])

    def form(self, asked: coordination.GroupRequest) -> coordination.GroupReply:
        return coordination.GroupReply(asked.generation + 1, (0,), 0, first=asked.fresh, over=asked.resting)

    def meet(self, asked: coordination.MeetRequest) -> coordination.MeetReply:
        return coordination.MeetReply(asked.given)

    def introduce(self, hello: Request) -> None:
        """Do nothing, because no other master takes over."""

    def start_heartbeat(self, every_s: float, beat: Callable[[], Any], reply: Callable[[Any], Any]) -> None:
        """Do nothing, because no master waits for heartbeats."""

    def close(self) -> None:
        """Do nothing, because a local job has no connection."""


def local_link(settings: config.Settings, master: LocalMaster | None = None) -> "MasterLink":
    return MasterLink(master or LocalMaster(settings), WorkerIdentity(0), OwnUsage(settings))


class WorkerIdentity(NamedTuple):
    """This worker's identity, and the connection data that the worker adds to the master's welcome."""

    rank: int
    incarnation: int = 0
    secret: bytes = b""
    certificates: str = ""
    host: str = ""


class MasterLink:
    """Connection of one worker to its master."""

    def __init__(self, master: channel.MasterChannel | LocalMaster, identity: WorkerIdentity, usage: OwnUsage) -> None:
        self._master, self._identity, self._usage = master, identity, usage
        self._stop = StopState(identity.rank)
        self.news = Subscriptions()
        self.leases = LeaseClient(master.ask, self._stop, self.news)
        self.group = GroupClient(master.ask)
        self.shared = SharedValues(master.ask)
        self.reports = ReportClient(master.ask)
        self.started_late = ""
        """Text such as `restarted in epoch 4`, until a restarted script starts its next epoch; then empty."""
        self._welcome: WorkerWelcome | None = None
        self._over = False
        self._before_finish: list[Callable[[], None]] = []

    def join(self) -> WorkerWelcome:
        """Join the job and wait for all servers. Later calls return the welcome with the current server addresses."""
        if self._welcome is None:
            identity = self._identity
            hello = messages.JoinWorker(identity.rank, os.getpid(), identity.incarnation, channel.BIRTH)
            welcome = self._master.ask(hello)
            assert isinstance(welcome, WorkerWelcome)
            self._master.introduce(hello)
            if identity.secret:
                welcome = msgspec.structs.replace(
                    welcome, secret=identity.secret, certificates=identity.certificates, host=identity.host
                )
            self._welcome = welcome
            self.news.slots.begin(welcome.placement.epoch)
            self._master.start_heartbeat(welcome.spec.heartbeat_s, self._beat, self._on_reply)
        self._welcome = self.news.updated(self._welcome)
        return self._welcome

    @property
    def joined(self) -> bool:
        """Return True after the script has called `st.join()`."""
        return self._welcome is not None

    def first_place(self) -> EpochPlace | None:
        reply = self._master.ask(messages.PlaceRequest(self._identity.rank))
        assert isinstance(reply, messages.PlaceReply)
        return reply.place

    @property
    def draining(self) -> bool:
        """Return True if this worker must end its loop, because the job stops or goes on without this worker."""
        return self._stop.draining

    def dismiss(self) -> None:
        self._stop.drain()

    def before_finish(self, call: Callable[[], None]) -> None:
        self._before_finish.append(call)

    def finish(self) -> None:
        """Report the successful end of the script to the master. A second call does nothing."""
        if not self._over:
            self._over = True
            for call in self._before_finish:
                call()
            report, objects = self.leases.tracker.report(), self.reports.take_objects()
            self._master.ask(messages.FinishRequest(report.progress, self.reports.take_report(), report.era, *objects))
            self._master.close()

    def fail(self, error: str, trace: str = "", blame: Blame = Blame.USER) -> None:
        """Report an exception of the script to the master, possibly before the script has joined. `error` is the first
        line of the exception."""
        if not self._over:
            self._over = True
            identity = self._identity
            self._master.ask(
                messages.ScriptError(identity.rank, redact(error), redact(trace), blame, identity.incarnation)
            )
            self._master.close()

    def _beat(self) -> messages.Heartbeat:
        leases, (objects, place) = self.leases.begin_report(), self.reports.take_objects()
        return messages.Heartbeat(
            self.reports.take_report(),
            leases.progress,
            leases.failures,
            leases.era,
            self.news.slots.epoch,
            objects=objects,
            place=place,
            feeders=0 if self.news.feeders.newest is None else self.news.feeders.newest.epoch,
            shuffle=self.news.shuffle_address,
            shufflers=0 if self.news.shufflers.newest is None else self.news.shufflers.newest.digest,
            usage=self._usage.read(),
        )

    def _on_reply(self, reply: messages.HeartbeatReply) -> bool:
        self._stop.on_reply(reply)
        self.group.on_reply(reply)
        self.reports.on_reply()
        self.news.on_reply(reply)
        return self.leases.on_reply(reply) or reply.healing
