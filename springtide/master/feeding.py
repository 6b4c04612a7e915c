"""Data workers in the master's event loop: they join, trainers hear of them, tuning says how many there are to be.

In: requests of data workers, reports of trainers, ticks, from `master.desk`. Out: events for the state machine
(`job.feeders`), and who feeds, for those who know an older roster. Decides nothing: `planning.dataworkers` does, over
what `master.feed_watch` has seen.
"""

import os
import pathlib
from collections.abc import Callable, Mapping

from springtide import errors
from springtide.domain.cluster import Role, RoleKind, RoleUsage
from springtide.domain.feeding import FeedState
from springtide.domain.job import Phase
from springtide.job import events, feeders
from springtide.job.nodes import ALIVE, NodeState
from springtide.master.agreeing import Agreeing
from springtide.master.feed_watch import FeedWatch
from springtide.master.rounds import Doors
from springtide.rpc import messages
from springtide.rpc.feeding import Feeder, Feeders


class Feeding:
    """The data workers of one job."""

    def __init__(
        self, doors: Doors, agreeing: Agreeing, clock: Callable[[], float], package: pathlib.Path,
    ) -> None:  # fmt: skip
        self._state, self._rules = doors.record.state, doors.record.state.spec.feeding
        self._doors, self._agreeing, self._clock = doors, agreeing, clock
        self.package = str(package.absolute())
        self.watch = FeedWatch()
        self._why = ""

    # ---- data workers ----

    def welcome(self) -> messages.DataWorkerWelcome:
        """A data worker has joined."""
        spec = self._state.spec
        return messages.DataWorkerWelcome(
            job=spec.name, seed=spec.seed, heartbeat_s=spec.heartbeat_s, package=self.package
        )

    async def answer(self, role: Role, incarnation: int, request: messages.Request) -> messages.Reply:
        """A request of a data worker."""
        if self._state.fenced(role, incarnation):
            if isinstance(request, messages.Heartbeat):
                return messages.Pulse(fenced=True)
            raise errors.Fenced(f"{role} of incarnation {incarnation} was given up, and should leave")
        match request:
            case messages.Heartbeat():
                self._doors.happen(events.Heard(role, incarnation))
                return messages.Pulse(
                    stop=self._state.phase.over, drain=self._state.node(role).state is NodeState.DRAINING,
                    feeders=self.news_for(request.feeders),
                )  # fmt: skip
            case messages.DataWorkerReady(address):
                self._doors.tell("ready", role=str(role), address=address)
                self._doors.happen(events.Ready(role, address, incarnation))
                return messages.Ok()
            case messages.Lookup():
                return await self._agreeing.look_up(request)
            case _:
                raise errors.BadInput(f"a data worker may not ask for {type(request).__name__}")

    # ---- trainers ----

    def news_for(self, known: int) -> Feeders | None:
        """Who feeds, for a member that knows of another roster."""
        own = self._state.feeding
        if own.epoch == known:
            return None
        members = tuple(Feeder(each.name, each.address, each.rank) for each in feeders.roster(self._state))
        return Feeders(own.epoch, own.wanted, members)

    def refused(self, role: Role, why: str) -> None:
        """A trainer says that it cannot be fed."""
        self._doors.happen(events.DataWorkersRefused(f"{role}: {why}"))

    def heard(self, role: Role, incarnation: int, state: FeedState | None) -> None:
        """A trainer's report."""
        self.watch.heard(role, incarnation, state, at=self._clock())

    @property
    def together(self) -> FeedState | None:
        """How all trainers are fed, for people."""
        workers = self._state.of_kind(RoleKind.WORKER)
        return self.watch.together(tuple(node.role for node in workers if node.state in ALIVE))

    @property
    def why(self) -> str:
        """The last word on how many there are."""
        return self._state.feeding.given_up or self._why

    # ---- how many ----

    def tick(self, usage: Mapping[Role, RoleUsage]) -> None:
        """See to the number that is wanted."""
        self.watch.measure(usage, at=self._clock())
        state, rules = self._state, self._rules
        if state.phase is not Phase.RUNNING or state.feeding.given_up or state.feeding.pinned or rules.off:
            return
        if rules.workers is not None and not state.feeding.epoch and self._doors.record.leased_at is not None:
            self._want(rules.workers, rules.cpu, "asked for with the job")

    def scale(self, count: int, why: str) -> None:
        """The user wants so many from now on."""
        own = self._state.feeding
        self._want(count, self._rules.cpu if own.cpu is None else own.cpu, why, pinned=True)

    def _want(self, count: int, cpu: float | None, why: str, *, pinned: bool = False) -> None:
        self._why = why
        self._doors.happen(events.DataWorkersScaled(count, cpu, why, pinned=pinned))

    @property
    def cores(self) -> float:
        """That the whole job may take."""
        return self._rules.cores or float(os.cpu_count() or 1)
