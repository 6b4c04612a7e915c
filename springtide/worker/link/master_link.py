"""A worker's link to its master: who I am, which shards are mine, how far I am. Without a cluster:
worker/link/local_link.py.

In: `worker.job` and `worker.input.batches` call a `Link`. Out: `rpc.messages.messages` to the master, over
`rpc.transport.channel`. The link is for the process that joined: a forked DataLoader child neither holds the socket nor
may call.
"""

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from springtide import config, errors
from springtide.dataworker.processes import package_transfer
from springtide.domain.core.roles import Placement, RoleKind
from springtide.domain.data.data_workers import LeftOut
from springtide.domain.data.epochs import EpochPlace
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.domain.spec.job_spec import Blame
from springtide.rpc.messages import messages
from springtide.rpc.messages.messages import (
    AtStep,
    DataEnd,
    GroupReply,
    GroupRequest,
    LeaseReply,
    MeetRequest,
    MemberReport,
    Regroup,
    ServerAddresses,
    WaitReply,
    WorkerWelcome,
)
from springtide.rpc.messages.messages import Feeders as Feeders
from springtide.rpc.messages.shuffling import Shufflers
from springtide.rpc.transport import channel
from springtide.telemetry.host.own_usage import OwnUsage
from springtide.telemetry.redactor import redact
from springtide.worker.link.lease_tracker import Hands, Words
from springtide.worker.link.local_link import AloneLink as AloneLink
from springtide.worker.link.subscriptions import FeedersFollower, ShufflersFollower, SlotsFollower

_current: "Link | None" = None


def current(settings: config.Settings | None = None) -> "Link":
    """This process's one link, made on first use: to the master that the environment names, else alone."""
    global _current
    if _current is None:
        settings = settings or config.load()
        if settings.master:
            _current = MasterLink(settings, rank=config.own_rank(settings, RoleKind.WORKER))
        else:
            _current = AloneLink(settings)
    return _current


def opened() -> "Link | None":
    """This process's link, if it has one and has joined the job."""
    joined = not isinstance(_current, MasterLink) or _current.joined
    return _current if joined else None


def whereabouts_now(welcome: WorkerWelcome, servers: ServerAddresses) -> WorkerWelcome:
    """A welcome with where servers are now: an address and the life that is there go together, or neither changes."""
    count = max(len(welcome.servers), len(servers.addresses))
    places = [*zip(welcome.servers, (*welcome.lives, *[0] * count), strict=False), *[("", 0)] * count][:count]
    for rank, (address, life) in enumerate(zip(servers.addresses, servers.lives, strict=False)):
        if address and life >= places[rank][1]:
            places[rank] = (address, life)
    addresses, lives = zip(*places, strict=True) if places else ((), ())
    return msgspec.structs.replace(welcome, servers=addresses, lives=lives)


class Link(Protocol):
    """What a worker asks of its master."""

    def join(self) -> WorkerWelcome:
        """Enter the job; waits until all servers are there. Called again: the same, with where servers are now."""
        ...

    hands: Hands
    """The leases that this worker has: the master is told of them with every heartbeat."""

    def lease(
        self, card: DatasetCard, most: int, seen: tuple[PartitionRange, ...] = ()
    ) -> LeaseReply | Regroup | WaitReply | DataEnd:
        """Put up to `most` more leases into `hands`. `Wait`: ask again (the call itself has waited a while).

        `End`: nothing of this pass is left but what this worker holds itself. `seen`: the partitions of a stream.
        """
        ...

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        """Have these ends of batches noted, and put into `hands` those that are; others are not ours to cut."""
        ...

    def report(self, report: MemberReport) -> None:
        """How far this worker is, in totals. Never blocks: rides on the next heartbeat."""
        ...

    def keep_objects(self, states: dict[str, bytes], place: EpochPlace | None) -> None:
        """States of the user's own objects, for checkpoints. Never blocks: rides on the next heartbeat."""
        ...

    def begin_epoch(self, place: EpochPlace, states: dict[str, bytes]) -> None:
        """The script is at this place, with these states: a next life begins there. Waits until the master has it."""
        ...

    started_late: str
    """`restarted in epoch 4`, until the script of a worker that was begins the next epoch; empty: it was not."""

    def barrier(self, name: str) -> None:
        """Wait until all workers have come to the barrier of this name; a name may be used again."""
        ...

    def share(self, key: str, value: bytes) -> None:
        """Put a small value where all workers of the job find it."""
        ...

    def lookup(self, key: str) -> bytes:
        """A value that some worker shares; waits until it has."""
        ...

    def claim(self, key: str) -> bool:
        """Whether this worker is to do what must be done once; if not, it is done when this returns."""
        ...

    def settle(self, key: str) -> None:
        """What was claimed is done."""
        ...

    def deliver(self, package: pathlib.Path, sealed: str) -> None:
        """See that the master has the package for data workers that lies in this folder."""
        ...

    def form(self, asked: GroupRequest) -> GroupReply:
        """Wait until the bsp group, the first or another one, is formed."""
        ...

    def meet(self, asked: MeetRequest) -> dict[str, bytes]:
        """What members of the group that was just formed give one another; waits for what is wanted.

        `GroupChanged`: some of it will not come.
        """
        ...

    group_lost: int
    """Generation of a bsp group that has lost a member, as far as is known here; 0: none."""

    save_due: int
    """Number of the checkpoint that is due of the bsp group, as far as is known here; 0: none."""

    def stop_at(self, asked: AtStep) -> bool:
        """Wait while the servers copy what they hold after this step. False: they could not begin."""
        ...

    def dismiss(self) -> None:
        """The job goes on without this worker: `draining` from now on."""
        ...

    def enter(self, bound: int) -> None:
        """Wait until values may be read, so that no push of the job will be staler than `bound` pushes."""
        ...

    def leave(self) -> None:
        """The push that was computed from them is applied."""
        ...

    def follow_servers(self, call: Callable[[ServerAddresses], None]) -> None:
        """Hear where servers are when some of them live again. Called in the link's thread, and must not wait."""
        ...

    def follow_slots(self, call: Callable[[Placement, tuple[str, ...]], None]) -> None:
        """Hear where slots are when some have moved, with all servers' addresses. Called in a thread of its own."""
        ...

    def follow_feeders(self, call: Callable[[Feeders], None]) -> None:
        """Hear which data workers feed. Called in the link's thread, and must neither wait nor ask."""
        ...

    def shuffle_at(self, address: str, call: Callable[[Shufflers], None]) -> None:
        """Batches of a stream are taken from other workers there; hear where they are, in the link's thread."""
        ...

    def unfed(self, why: str) -> None:
        """Data workers cannot feed the workers of this job: why."""
        ...

    def note(self, what: str, why: str) -> None:
        """Something was decided here that the job's story should tell."""
        ...

    def trained_without(self, left_out: LeftOut) -> None:
        """Samples cannot be made, and their batch is trained without them: the job's outcome names them."""
        ...

    @property
    def draining(self) -> bool:
        """The job was asked to stop: push the batch in hand, then end the loop."""
        ...

    @property
    def unneeded(self) -> bool:
        """Whether this worker was never given a lease and has been told that there is none left."""
        ...

    def before_finish(self, call: Callable[[], None]) -> None:
        """Something to do before the end is told, such as a last report."""
        ...

    def finish(self) -> None:
        """The script has ended well. Harmless when said twice."""
        ...

    def fail(self, error: str, trace: str = "", blame: Blame = Blame.USER) -> None:
        """The script has raised; `error` is the line to show first: `ValueError: no such column (train.py:12)`."""
        ...


class MasterLink:
    """The link of a worker that `springtide run` (or another platform) has started."""

    def __init__(self, settings: config.Settings, *, rank: int) -> None:
        self._secret, self._rank, self._incarnation = config.job_secret(settings), rank, settings.incarnation
        self._certificates = settings.tls
        self._channel = channel.for_member(settings, self._secret)
        self._host, self._usage = channel.own_host(settings, self._channel), OwnUsage(settings)
        self._lock = threading.Lock()
        self.hands, self._told = Hands(), Words()
        self._report: MemberReport | None = None
        self._objects: tuple[dict[str, bytes], EpochPlace | None] = ({}, None)
        self._objects_told: tuple[dict[str, bytes], EpochPlace | None] = self._objects
        self.started_late = ""
        self._welcome: WorkerWelcome | None = None
        self._draining = self._fenced = self._over = False
        self.unneeded = self._given = False
        self._turns: dict[str, int] = {}
        self.group_lost = self.save_due = 0
        self._before_finish: list[Callable[[], None]] = []
        self._servers: ServerAddresses | None = None
        self._follow: Callable[[ServerAddresses], None] = lambda _: None
        self._slots, self._feeders = SlotsFollower(), FeedersFollower()
        self._shuffle, self._shufflers = "", ShufflersFollower(lambda _: None)

    def join(self) -> WorkerWelcome:
        """Enter the job; see `Link.join`."""
        if self._welcome is None:
            hello = messages.JoinWorker(self._rank, os.getpid(), self._incarnation, channel.BIRTH)
            welcome = self._channel.ask(hello)
            assert isinstance(welcome, WorkerWelcome)
            self._channel.introduce(hello)
            self._welcome = msgspec.structs.replace(
                welcome, secret=self._secret, certificates=self._certificates, host=self._host
            )
            self._slots.begin(welcome.placement.epoch)
            self._channel.start_heartbeat(welcome.heartbeat_s, self._beat, self._take_pulse)
        if (news := self._slots.newest) is not None:
            self._welcome = msgspec.structs.replace(self._welcome, placement=news.placement, servers=news.addresses)
        if self._servers is not None:
            self._welcome = whereabouts_now(self._welcome, self._servers)
        return self._welcome

    def lease(
        self, card: DatasetCard, most: int, seen: tuple[PartitionRange, ...] = ()
    ) -> LeaseReply | Regroup | WaitReply | DataEnd:
        """Leases to train; see `Link.lease`."""
        if self.draining:
            return DataEnd()
        words = self.hands.words()
        asked = messages.LeaseRequest(card, words.progress, words.failures, most, self.hands.ends, words.era, seen)
        reply = self._channel.ask(asked)
        assert isinstance(reply, LeaseReply | Regroup | WaitReply | DataEnd)
        self.hands.told(words)
        self._draining = self._draining or (isinstance(reply, DataEnd) and reply.stop)
        self._given = self._given or isinstance(reply, LeaseReply)
        self.unneeded = isinstance(reply, DataEnd) and not self._given
        if isinstance(reply, LeaseReply):
            self._reach(reply.servers)
            self.hands.take(card, reply.grants, reply.era, reply.cuts)
        return reply

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        """Ends of batches; see `Link.cut`."""
        reply = self._channel.ask(messages.CutRequest(cuts, self.hands.era))
        assert isinstance(reply, messages.CutsNoted)
        self.hands.note_cuts(reply.cuts, reply.era)

    def report(self, report: MemberReport) -> None:
        """How far this worker is; only the newest is sent."""
        with self._lock:
            self._report = report

    def keep_objects(self, states: dict[str, bytes], place: EpochPlace | None) -> None:
        """States of the user's own objects; only the newest are sent."""
        with self._lock:
            self._objects = (states, place)

    def begin_epoch(self, place: EpochPlace, states: dict[str, bytes]) -> None:
        """The script is at this place; what a heartbeat had to tell of an earlier one is of no use any more."""
        self._channel.ask(messages.EpochBegun(place, states))
        with self._lock:
            self._objects = ({}, None)

    def first_place(self) -> EpochPlace | None:
        """The place that the script is to begin with, for whoever runs it; it need not have joined."""
        reply = self._channel.ask(messages.PlaceRequest(self._rank))
        assert isinstance(reply, messages.PlaceReply)
        return reply.place

    def barrier(self, name: str) -> None:
        """Wait for all workers."""
        turn = self._turns[name] = self._turns.get(name, 0) + 1
        self._channel.ask(messages.BarrierRequest(name, turn))

    def share(self, key: str, value: bytes) -> None:
        """Put a value where all workers find it."""
        self._channel.ask(messages.ShareRequest(key, value))

    def lookup(self, key: str) -> bytes:
        """A value that some worker shares."""
        reply = self._channel.ask(messages.ValueRequest(key))
        assert isinstance(reply, messages.ValueFound)
        return reply.value

    def claim(self, key: str) -> bool:
        """Whether this worker is to do what must be done once."""
        reply = self._channel.ask(messages.ClaimRequest(key))
        assert isinstance(reply, messages.ClaimReply)
        return reply.yours

    def settle(self, key: str) -> None:
        """What was claimed is done."""
        self._channel.ask(messages.ClaimDone(key))

    def deliver(self, package: pathlib.Path, sealed: str) -> None:
        """Nothing is sent where the master sees the folder."""
        package_transfer.send(self._channel.ask, package, sealed)

    def form(self, asked: GroupRequest) -> GroupReply:
        """Wait until the bsp group is formed."""
        reply = self._channel.ask(asked)
        assert isinstance(reply, GroupReply)
        return reply

    def meet(self, asked: MeetRequest) -> dict[str, bytes]:
        """What members of the group give one another."""
        reply = self._channel.ask(asked)
        assert isinstance(reply, messages.MeetReply)
        return reply.values

    def stop_at(self, asked: AtStep) -> bool:
        """Wait while the servers copy what they hold after this step."""
        return isinstance(self._channel.ask(asked), messages.Ok)

    def dismiss(self) -> None:
        """The job goes on without this worker."""
        self._draining = True

    def enter(self, bound: int) -> None:
        """Wait until values may be read."""
        self._channel.ask(messages.Enter(bound))

    def leave(self) -> None:
        """The push that was computed from them is applied."""
        self._channel.ask(messages.Leave())

    def follow_servers(self, call: Callable[[ServerAddresses], None]) -> None:
        """Hear where servers are, and at once what was heard before."""
        self._follow = call
        if self._servers is not None:
            call(self._servers)

    def follow_slots(self, call: Callable[[Placement, tuple[str, ...]], None]) -> None:
        """Hear where slots are, and at once what was heard before."""
        self._slots.follow(call)

    def follow_feeders(self, call: Callable[[Feeders], None]) -> None:
        """Hear which data workers feed, and at once what was heard before."""
        self._feeders.follow(call)

    def shuffle_at(self, address: str, call: Callable[[Shufflers], None]) -> None:
        """Batches of a stream are taken from other workers there."""
        self._shuffle, self._shufflers = address, ShufflersFollower(call)

    def unfed(self, why: str) -> None:
        """Data workers cannot feed the workers of this job."""
        self._channel.ask(messages.CannotFeed(redact(why)))

    def note(self, what: str, why: str) -> None:
        """Something was decided here."""
        self._channel.ask(messages.WorkerDecision(what, redact(why)))

    def trained_without(self, left_out: LeftOut) -> None:
        """Samples cannot be made, and their batch is trained without them."""
        self._channel.ask(messages.TrainedWithout(left_out._replace(error=redact(left_out.error))))

    @property
    def draining(self) -> bool:
        """The job was asked to stop, or goes on without this worker. `Fenced`: another has its work already."""
        if self._fenced:
            raise errors.Fenced(f"worker-{self._rank} was silent for too long, and its work is with another by now")
        return self._draining

    @property
    def joined(self) -> bool:
        """Whether the script has called `st.join()`."""
        return self._welcome is not None

    def before_finish(self, call: Callable[[], None]) -> None:
        """Something to do before the end is told."""
        self._before_finish.append(call)

    def finish(self) -> None:
        """The script has ended well."""
        if not self._over:
            self._over = True
            for call in self._before_finish:
                call()
            words = self.hands.words()
            self._channel.ask(messages.FinishRequest(words.progress, self._take_report(), words.era, *self._objects))
            self._channel.close()

    def fail(self, error: str, trace: str = "", blame: Blame = Blame.USER) -> None:
        """The script has raised; it may be that it had not joined."""
        if not self._over:
            self._over = True
            self._channel.ask(messages.ScriptError(self._rank, redact(error), redact(trace), blame, self._incarnation))
            self._channel.close()

    def _beat(self) -> messages.Heartbeat:
        self._told, self._objects_told = self.hands.words(), self._objects
        objects, place = self._objects_told
        return messages.Heartbeat(
            self._take_report(), self._told.progress, self._told.failures, self._told.era, self._slots.epoch,
            objects=objects, place=place, feeders=self._feeders.epoch,
            shuffle=self._shuffle, shufflers=self._shufflers.digest, usage=self._usage.read(),
        )  # fmt: skip

    def _take_pulse(self, pulse: messages.HeartbeatReply) -> bool:
        self._draining = self._draining or pulse.drain
        self._fenced = self._fenced or pulse.fenced
        self.group_lost = max(self.group_lost, pulse.group_lost)
        self.save_due = pulse.save
        self.hands.told(self._told)
        with self._lock:
            if self._objects is self._objects_told:
                self._objects = ({}, None)
        self._reach(pulse.servers)
        if pulse.goal is not None:
            self._slots.take(pulse.goal)
        if pulse.feeders is not None:
            self._feeders.take(pulse.feeders)
        if pulse.shufflers is not None:
            self._shufflers.take(pulse.shufflers)
        return self.hands.heed(pulse.revoked, pulse.truncate, hurry=pulse.hurry, era=pulse.era) or pulse.healing

    def _reach(self, servers: ServerAddresses | None) -> None:
        """Turn to the next lives of lost servers, before a lease of the era that they begin is worked on.

        Else an earlier life that is still there could acknowledge what counts for the new one.
        """
        if servers is not None and servers != self._servers:
            self._servers = servers
            self._follow(servers)

    def _take_report(self) -> MemberReport | None:
        with self._lock:
            report, self._report = self._report, None
        return report
