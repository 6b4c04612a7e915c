"""A worker's link to its master: joins the job, sends heartbeats, reports the end.

In: `worker.job` and `worker.runner`. Out: `rpc.messages` to the master over `rpc.transport.channel`, or to
link/local_master.py without a cluster. Only the process that joined may use the link, because a forked DataLoader child
does not hold the socket. Next: link/clients.py, link/subscriptions.py.
"""

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from springtide import config
from springtide.domain.core.roles import RoleKind
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import Blame
from springtide.rpc.messages import messages
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.transport import channel
from springtide.telemetry.host.usage import OwnUsage
from springtide.telemetry.redactor import redact
from springtide.worker.link.clients import GroupClient, LeaseClient, ReportClient, SharedValues, StopState
from springtide.worker.link.local_master import LocalMaster
from springtide.worker.link.subscriptions import Subscriptions

_current: "MasterLink | None" = None


def current(settings: config.Settings | None = None) -> "MasterLink":
    """Return this process's only link, created on first use: to the environment's master, else to a local master."""
    global _current
    if _current is None:
        _current = open_link(settings or config.load())
    return _current


def opened() -> "MasterLink | None":
    """Return this process's link if it exists and has joined the job."""
    return _current if _current is not None and _current.joined else None


def open_link(settings: config.Settings) -> "MasterLink":
    """Connect to the master of the settings; without one, create a local master."""
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


def local_link(settings: config.Settings, master: LocalMaster | None = None) -> "MasterLink":
    return MasterLink(master or LocalMaster(settings), WorkerIdentity(0), OwnUsage(settings))


class Master(Protocol):
    """The transport of a link: `rpc.transport.channel.MasterChannel` or `LocalMaster`."""

    def ask(self, request: messages.Request) -> messages.Reply: ...

    def introduce(self, hello: messages.Request) -> None: ...

    def start_heartbeat(
        self,
        every_s: float,
        beat: Callable[[], messages.Heartbeat],
        pulse: Callable[[messages.HeartbeatReply], bool | None],
    ) -> None: ...

    def close(self) -> None: ...


class WorkerIdentity(NamedTuple):
    """Identity of this worker, and the connection data that it adds to the master's welcome."""

    rank: int
    incarnation: int = 0
    secret: bytes = b""
    certificates: str = ""
    host: str = ""


class MasterLink:
    """Link of one worker to its master."""

    def __init__(self, master: Master, identity: WorkerIdentity, usage: OwnUsage) -> None:
        self._master, self._identity, self._usage = master, identity, usage
        self._stop = StopState(identity.rank)
        self.news = Subscriptions()
        self.leases = LeaseClient(master.ask, self._stop, self.news)
        self.group = GroupClient(master.ask)
        self.shared = SharedValues(master.ask)
        self.reports = ReportClient(master.ask)
        self.started_late = ""
        """Text such as `restarted in epoch 4`, until a restarted script starts its next epoch; else empty."""
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
            self._master.start_heartbeat(welcome.heartbeat_s, self._beat, self._on_pulse)
        self._welcome = self.news.updated(self._welcome)
        return self._welcome

    @property
    def joined(self) -> bool:
        """Return True once the script has called `st.join()`."""
        return self._welcome is not None

    def first_place(self) -> EpochPlace | None:
        reply = self._master.ask(messages.PlaceRequest(self._identity.rank))
        assert isinstance(reply, messages.PlaceReply)
        return reply.place

    @property
    def draining(self) -> bool:
        """Return True once this worker must end its loop, because the job stops or continues without it."""
        return self._stop.draining

    def dismiss(self) -> None:
        """Set `draining`, because the job continues without this worker."""
        self._stop.drain()

    def before_finish(self, call: Callable[[], None]) -> None:
        """Call this function before the end is reported, for a last report."""
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
        """Report an exception of the script to the master, possibly before the script joined; `error` is its first
        line.
        """
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
            feeders=self.news.feeders.epoch,
            shuffle=self.news.shufflers.own_address,
            shufflers=self.news.shufflers.digest,
            usage=self._usage.read(),
        )

    def _on_pulse(self, pulse: messages.HeartbeatReply) -> bool:
        self._stop.on_pulse(pulse)
        self.group.on_pulse(pulse)
        self.reports.on_pulse()
        self.news.on_pulse(pulse)
        return self.leases.on_pulse(pulse) or pulse.healing
