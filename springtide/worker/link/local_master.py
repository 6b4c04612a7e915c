"""A master for one worker without a cluster: answers every request at once, from a ledger in this process.

In: requests of `worker.link.master_link.MasterLink`. Out: the replies that `master.dispatcher` would send.
"""

from collections.abc import Callable
from typing import Any

from springtide import config, errors
from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Placement
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.rpc.messages import messages
from springtide.rpc.messages.messages import WorkerWelcome

ALONE = LeaseHolder(rank=0)


class LocalMaster:
    """Master of one worker without servers; the worker gets all shards."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings
        self._book = JobLedger(workers=1)
        self._shared: dict[str, bytes] = {}

    def ask(self, request: Any) -> Any:
        """Answer a request; requests without a specific reply get Ok."""
        answers: dict[type, Callable[[Any], messages.Reply]] = {
            messages.JoinWorker: lambda _: self.welcome(),
            messages.LeaseRequest: self.lease,
            messages.CutRequest: lambda asked: messages.CutsNoted(self._book.cut(ALONE, asked.cuts), asked.era),
            messages.ShareRequest: self.share,
            messages.ValueRequest: self.lookup,
            messages.ClaimRequest: lambda _: messages.ClaimReply(True),
            messages.GroupRequest: self.form,
            messages.MeetRequest: self.meet,
            messages.AtStep: lambda _: messages.HeartbeatReply(),  # without a cluster there are no checkpoints
            messages.PlaceRequest: lambda _: messages.PlaceReply(),
            messages.PackageWritten: lambda _: messages.MissingFiles(()),
        }
        answer = answers.get(type(request))
        return messages.Ok() if answer is None else answer(request)

    def welcome(self) -> WorkerWelcome:
        """Return rank 0 of 1; the one store in this process owns all slots."""
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

    def lease(self, asked: messages.LeaseRequest) -> messages.Reply:
        self._book.report(ALONE, asked.progress, at=0.0)
        if asked.ends is not None:
            self._book.end(ALONE, asked.card, asked.ends)
        answer = self._book.lease(ALONE, asked.card, asked.most, at=0.0, seen=asked.seen)
        if isinstance(answer, NoLease):
            return (
                messages.WaitReply() if answer is NoLease.WAIT and asked.card.stream is not None else messages.DataEnd()
            )
        return messages.LeaseReply(answer)

    def share(self, asked: messages.ShareRequest) -> messages.Reply:
        self._shared[asked.key] = asked.value
        return messages.Ok()

    def lookup(self, asked: messages.ValueRequest) -> messages.Reply:
        if asked.key not in self._shared:
            raise errors.UnknownName("shared value", asked.key, self._shared)
        return messages.ValueFound(self._shared[asked.key])

    def form(self, asked: messages.GroupRequest) -> messages.GroupReply:
        return messages.GroupReply(asked.generation + 1, (0,), 0, first=asked.fresh, over=asked.resting)

    def meet(self, asked: messages.MeetRequest) -> messages.MeetReply:
        return messages.MeetReply(asked.given)

    def introduce(self, hello: messages.Request) -> None:
        """Do nothing, because no other master takes over."""

    def start_heartbeat(self, every_s: float, beat: Callable[[], Any], pulse: Callable[[Any], Any]) -> None:
        """Do nothing, because no master waits for heartbeats."""

    def close(self) -> None:
        """Do nothing, because there is no connection."""
