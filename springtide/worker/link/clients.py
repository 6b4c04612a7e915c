"""Requests of a worker to its master, by subject: leases, the bsp group, shared values, reports.

In: calls of the worker's loop and setup. Out: one request per call over `Ask`, to a real master
(`rpc.transport.channel`) or to the `LocalMaster`. Next: link/master_link.py owns one client of each kind and sends
heartbeats.
"""

import pathlib
import threading
from collections.abc import Callable

from springtide import errors
from springtide.dataworker.processes import package_transfer
from springtide.domain.data.data_workers import LeftOut
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.rpc.messages import coordination, messages
from springtide.rpc.messages.data_workers import CannotFeed, TrainedWithout, WorkerDecision
from springtide.rpc.messages.types import MemberReport, Reply, Request
from springtide.telemetry.output import redact
from springtide.worker.link.lease_tracker import LeaseReport, LeaseTracker
from springtide.worker.link.subscriptions import Subscriptions

Ask = Callable[[Request], Reply]
LeaseAnswer = messages.LeaseReply | coordination.Regroup | messages.WaitReply | messages.DataEnd
GatherAnswer = coordination.GatherReply | coordination.Regroup | messages.DataEnd
ObjectStates = tuple[dict[str, bytes], EpochPlace | None]


class StopState:
    """Whether this worker must stop because the job drains, or because the master has fenced this worker."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._draining = self._fenced = False

    @property
    def draining(self) -> bool:
        """Return True if the worker must end its loop after the current batch. Raise `Fenced` if the master has fenced
        this worker."""
        if self._fenced:
            raise errors.Fenced(
                f"worker-{self._rank} was fenced after missing heartbeats, and other workers train its leases"
            )
        return self._draining

    def drain(self) -> None:
        self._draining = True

    def on_reply(self, reply: messages.HeartbeatReply) -> None:
        self._draining = self._draining or reply.drain
        self._fenced = self._fenced or reply.fenced


class LeaseClient:
    """Client that requests leases and adds them to `tracker`."""

    def __init__(self, ask: Ask, stop: StopState, news: Subscriptions) -> None:
        self.tracker = LeaseTracker()
        self.unneeded = False
        """Whether the master has no lease left and this worker never got one."""
        self._ask, self._stop, self._news = ask, stop, news
        self._granted = False
        self._reported = LeaseReport()

    def lease(self, card: DatasetCard, most: int, seen: tuple[PartitionRange, ...] = ()) -> LeaseAnswer:
        """Request up to `most` more leases. `seen` has the partitions of a stream.

        After a `WaitReply`, the worker asks again. After a `DataEnd`, the master has no further lease of this pass; the
        worker still trains the leases that it holds.
        """
        if self._stop.draining:
            return messages.DataEnd()
        report = self.tracker.report()
        request = messages.LeaseRequest(
            card, report.progress, report.failures, most, self.tracker.ends, report.era, seen, self.tracker.short
        )
        reply = self._ask(request)
        assert isinstance(reply, LeaseAnswer)
        self.tracker.on_reported(report)
        if isinstance(reply, messages.DataEnd):
            self.unneeded = not self._granted
            if reply.stop:
                self._stop.drain()
        else:
            self.unneeded = False
        if isinstance(reply, messages.LeaseReply):
            self._granted = True
            self._news.take_servers(reply.servers)
            self.tracker.add_grants(card, reply.grants, reply.era, reply.cuts)
        return reply

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        """Ask the master to end batches at these offsets. The tracker gets the cuts that the master records."""
        reply = self._ask(coordination.CutRequest(cuts, self.tracker.era))
        assert isinstance(reply, coordination.CutsNoted)
        self.tracker.note_cuts(reply.cuts, reply.era)

    def begin_report(self) -> LeaseReport:
        """Return the report for the next heartbeat. `on_reply` marks the report as received."""
        self._reported = self.tracker.report()
        return self._reported

    def on_reply(self, reply: messages.HeartbeatReply) -> bool:
        self.tracker.on_reported(self._reported)
        return self.tracker.apply_changes(reply.revoked, reply.truncate, hurry=reply.hurry, era=reply.era)


class GroupClient:
    """Client for bsp groups and bounded staleness, where workers wait for each other."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.lost = 0
        """Generation of a bsp group that has lost a member; 0 if none has."""
        self.save_due = 0
        """Number of the checkpoint that the bsp group must now make; 0 if none is due."""

    def form(self, request: coordination.GroupRequest) -> coordination.GroupReply:
        reply = self._ask(request)
        assert isinstance(reply, coordination.GroupReply)
        return reply

    def meet(self, request: coordination.MeetRequest) -> dict[str, bytes]:
        """Exchange values with the members of the new group. Raise `GroupChanged` if a member will not arrive."""
        reply = self._ask(request)
        assert isinstance(reply, coordination.MeetReply)
        return reply.values

    def stop_at(self, request: coordination.AtStep) -> bool:
        """Wait while the servers copy their state after this step. Return False if the copy could not begin."""
        return isinstance(self._ask(request), messages.Ok)

    def enter(self, bound: int) -> None:
        """Wait until this worker may read values. Other workers push at most `bound` times between this worker's read
        and its push.
        """
        self._ask(coordination.Enter(bound))

    def leave(self) -> None:
        self._ask(coordination.Leave())

    def on_reply(self, reply: messages.HeartbeatReply) -> None:
        self.lost = max(self.lost, reply.group_lost)
        self.save_due = reply.save


class SharedValues:
    """Small values that all workers of a job share, and work that only one of them does."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def share(self, key: str, value: bytes) -> None:
        self._ask(coordination.ShareRequest(key, value))

    def lookup(self, key: str) -> bytes:
        reply = self._ask(coordination.ValueRequest(key))
        assert isinstance(reply, coordination.ValueFound)
        return reply.value

    def gather(self, request: coordination.GatherRequest) -> GatherAnswer:
        reply = self._ask(request)
        assert isinstance(reply, GatherAnswer)
        return reply

    def claim(self, key: str) -> bool:
        """Return True if this worker must do a task that the job does only once. Return False if another worker has
        done the task.
        """
        reply = self._ask(coordination.ClaimRequest(key))
        assert isinstance(reply, coordination.ClaimReply)
        return reply.yours

    def settle(self, key: str) -> None:
        self._ask(coordination.ClaimDone(key))

    def once(self, key: str, work: Callable[[], None]) -> None:
        """Run the task on the first worker that calls this method, while the other workers wait. If that worker dies,
        another worker runs the task.
        """
        if self.claim(key):
            work()
            self.settle(key)

    def deliver(self, package: pathlib.Path, sealed: str) -> None:
        """Send the data workers' package to the master, unless the master can read the package's folder."""
        package_transfer.send(self._ask, package, sealed)


class ReportClient:
    """Client that reports to the master. Progress and object states go with the next heartbeat, and events go
    immediately."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self.latest = MemberReport()
        """Newest totals of this worker."""
        self._unsent = False
        self._objects: ObjectStates = ({}, None)
        self._objects_sent: ObjectStates = self._objects

    def report(self, report: MemberReport) -> None:
        with self._lock:
            self.latest, self._unsent = report, True

    def keep_objects(self, states: dict[str, bytes], place: EpochPlace | None) -> None:
        """Send the states of the user's objects with the next heartbeat. Later states replace earlier ones."""
        with self._lock:
            self._objects = (states, place)

    def begin_epoch(self, place: EpochPlace, states: dict[str, bytes]) -> None:
        """Report the script's position to the master, and wait for the reply. A restarted script resumes at this
        position."""
        self._ask(messages.EpochBegun(place, states))
        with self._lock:
            self._objects = ({}, None)

    def unfed(self, why: str) -> None:
        self._ask(CannotFeed(redact(why)))

    def note(self, what: str, why: str) -> None:
        self._ask(WorkerDecision(what, redact(why)))

    def trained_without(self, left_out: LeftOut) -> None:
        self._ask(TrainedWithout(left_out._replace(error=redact(left_out.error))))

    def take_report(self) -> MemberReport | None:
        with self._lock:
            unsent, self._unsent = self._unsent, False
            return self.latest if unsent else None

    def take_objects(self) -> ObjectStates:
        """Return the object states for the next message. Return the same states again until the caller calls
        `on_reply`.
        """
        self._objects_sent = self._objects
        return self._objects_sent

    def on_reply(self) -> None:
        with self._lock:
            if self._objects is self._objects_sent:
                self._objects = ({}, None)
