"""A worker's link where there is no cluster: everything that a master would say, said at once.

In: `worker.job` and `worker.input.batches`, as with any `worker.link.master_link.Link`. Out: shards of a book in this
process.
"""

import pathlib
from collections.abc import Callable

from springtide import config, errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Placement
from springtide.domain.data.data_workers import LeftOut
from springtide.domain.data.epochs import EpochPlace
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.domain.spec.job_spec import Blame
from springtide.rpc.messages.messages import (
    AtStep,
    DataEnd,
    Feeders,
    GroupReply,
    GroupRequest,
    LeaseReply,
    MeetRequest,
    MemberReport,
    ServerAddresses,
    WaitReply,
    WorkerWelcome,
)
from springtide.rpc.messages.shuffling import Shufflers
from springtide.worker.link.lease_tracker import Hands

ALONE = LeaseHolder(rank=0)


class AloneLink:
    """No cluster: one worker, no servers, all shards to itself. What is reported can be read from `latest`."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings
        self._book = JobLedger(workers=1)
        self.hands = Hands()
        self._shared: dict[str, bytes] = {}
        self.latest = MemberReport()
        self.draining = self.unneeded = False
        self.started_late = ""
        self.group_lost = self.save_due = 0
        self._before_finish: list[Callable[[], None]] = []

    def join(self) -> WorkerWelcome:
        """Rank 0 of 1; all slots belong to the one store in this process."""
        settings = self._settings
        return WorkerWelcome(
            job="alone",
            rank=0,
            workers=1,
            servers=(),
            placement=Placement(epoch=0, servers=1, server_of_slot=(0,) * settings.slots),
            slots=settings.slots,
            seed=settings.seed,
            sync="bsp" if settings.sync == "bsp" else "async",
            heartbeat_s=1.0,
        )

    def lease(
        self, card: DatasetCard, most: int, seen: tuple[PartitionRange, ...] = ()
    ) -> LeaseReply | WaitReply | DataEnd:
        """The next shard, or all partitions of a stream."""
        words = self.hands.words()
        self._book.report(ALONE, words.progress, at=0.0)
        if self.hands.ends is not None:
            self._book.end(ALONE, card, self.hands.ends)
        self.hands.told(words)
        answer = self._book.lease(ALONE, card, most, at=0.0, seen=seen)
        if isinstance(answer, NoLease):
            return WaitReply() if answer is NoLease.WAIT and card.stream is not None else DataEnd()
        self.hands.take(card, answer)
        return LeaseReply(answer)

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        """All of them."""
        self.hands.note_cuts(self._book.cut(ALONE, cuts), self.hands.era)

    def report(self, report: MemberReport) -> None:
        """Keep the newest."""
        self.latest = report

    def keep_objects(self, states: dict[str, bytes], place: EpochPlace | None) -> None:
        """They are where they are: nothing saves a job that is alone."""

    def begin_epoch(self, place: EpochPlace, states: dict[str, bytes]) -> None:
        """There is no next life."""

    def barrier(self, name: str) -> None:
        """Everyone is here."""

    def share(self, key: str, value: bytes) -> None:
        """Keep it."""
        self._shared[key] = value

    def lookup(self, key: str) -> bytes:
        """What was shared; there is no one to wait for."""
        if key not in self._shared:
            raise errors.UnknownName("shared value", key, self._shared)
        return self._shared[key]

    def claim(self, key: str) -> bool:
        """Who else?"""
        return True

    def settle(self, key: str) -> None:
        """No one waits for it."""

    def deliver(self, package: pathlib.Path, sealed: str) -> None:
        """It lies where data workers of this process look."""

    def form(self, asked: GroupRequest) -> GroupReply:
        """A group of one, until its script has ended."""
        return GroupReply(asked.generation + 1, (0,), 0, first=asked.fresh, over=asked.resting)

    def meet(self, asked: MeetRequest) -> dict[str, bytes]:
        """There is nobody else."""
        return asked.given

    def stop_at(self, asked: AtStep) -> bool:
        """There are no checkpoints."""
        return False

    def dismiss(self) -> None:
        """There is no one to leave."""

    def enter(self, bound: int) -> None:
        """Nobody else pushes."""

    def leave(self) -> None:
        """Nobody waits."""

    def follow_servers(self, call: Callable[[ServerAddresses], None]) -> None:
        """There are none."""

    def follow_slots(self, call: Callable[[Placement, tuple[str, ...]], None]) -> None:
        """They stay."""

    def follow_feeders(self, call: Callable[[Feeders], None]) -> None:
        """There are none."""

    def shuffle_at(self, address: str, call: Callable[[Shufflers], None]) -> None:
        """There are no other workers."""

    def unfed(self, why: str) -> None:
        """Nobody wanted to."""

    def note(self, what: str, why: str) -> None:
        """Nobody else need know."""

    def trained_without(self, left_out: LeftOut) -> None:
        """The log says so."""

    def before_finish(self, call: Callable[[], None]) -> None:
        """Something to do before the end."""
        self._before_finish.append(call)

    def finish(self) -> None:
        """No one to tell, but the last report is taken."""
        for call in self._before_finish:
            call()
        self._before_finish.clear()

    def fail(self, error: str, trace: str = "", blame: Blame = Blame.USER) -> None:
        """No one to tell: the exception goes on to the user."""
