"""How a job's trainers are fed: what their reports and the agent's measurements say over an interval, as a `FeedSeen`.

In: reports of workers and what roles use, as `master.desk` gets them; the clock is an argument. Not journaled: a master
that takes over watches again. Next: `master.feeding`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from springtide.domain.cluster import Life, Role, RoleKind, RoleUsage
from springtide.domain.feeding import FeedSeen, FeedState
from springtide.job import feeders
from springtide.job.nodes import ALIVE, NodeState
from springtide.job.state import JobState

NOTHING = FeedState()


@dataclass(slots=True)
class Fed:
    """One trainer's words in this interval."""

    first: FeedState
    last: FeedState
    since: float
    at: float


@dataclass(slots=True)
class FeedWatch:
    """Of one job; `restart` begins an interval."""

    since: float = 0.0
    told: bool = False
    """Whether any trainer could be fed at all, as far as they have said."""
    _fed: dict[Life, Fed] = field(default_factory=dict)
    _latest: dict[Role, FeedState] = field(default_factory=dict)
    _fills: list[float] = field(default_factory=list)
    _used: dict[Life, tuple[float, float, float, float]] = field(default_factory=dict)
    """Of a role: time and processor seconds when first and last measured."""

    def heard(self, role: Role, incarnation: int, state: FeedState | None, *, at: float) -> None:
        """A trainer's word. Of a life that is new only what comes after its first word counts."""
        if state is None:
            return
        self.told = True
        self._latest[role] = state
        life = Life(role, incarnation)
        if life in self._fed:
            self._fed[life].last, self._fed[life].at = state, at
        else:
            self._fed[life] = Fed(state, state, at, at)
        if state.room:
            self._fills.append(state.queued / state.room)

    def measure(self, usage: Mapping[Role, RoleUsage], *, at: float) -> None:
        """What the agent measured last."""
        for role, one in usage.items():
            life = Life(role, one.incarnation)
            began, first, _, _ = self._used.get(life, (at, one.cpu_s, at, one.cpu_s))
            self._used[life] = (began, first, at, one.cpu_s)

    def restart(self, *, at: float) -> None:
        """An interval begins: totals count from here."""
        self.since = at
        self._fills = []
        self._fed = {life: Fed(one.last, one.last, one.at, one.at) for life, one in self._fed.items()}
        self._used = {life: (late, last, late, last) for life, (_, _, late, last) in self._used.items()}

    def together(self, alive: tuple[Role, ...]) -> FeedState | None:
        """The last words of these trainers, added up; None before any has spoken."""
        said = [state for role, state in self._latest.items() if role in alive]
        if not said:
            return None
        return FeedState(**{each.name: sum(getattr(one, each.name) for one in said) for each in fields(FeedState)})

    def seen(self, state: JobState, *, at: float, cores: float) -> FeedSeen | None:
        """The interval so far; None while there is too little to say anything. `cores`: of the whole job."""
        alive = {Life(node.role, node.incarnation) for node in state.nodes.values() if node.state in ALIVE}
        trainers = [one for life, one in self._fed.items() if life in alive and one.at > one.since]
        looped = [one for one in trainers if one.last.looped_s > one.first.looped_s and _grew(one, "taken") > 0]
        if not looped:
            return None
        in_loops = sum(_grew(one, "looped_s") for one in looped)
        waited = sum(_grew(one, "waited_s") for one in looped)
        own = sum(_grew(one, "read_s") + _grew(one, "stateless_s") for one in looped)
        worker, feeder = self._cores(state, RoleKind.WORKER), self._cores(state, RoleKind.DATA_WORKER)
        return FeedSeen(
            at=at, trainers=len(looped), data_workers=len(feeders.roster(state)),
            data_worker_cpu=feeder[0], data_worker_cpu_used=feeder[1],
            trainer_cpu=worker[0], trainer_cpu_used=worker[1],
            steps_per_s=sum(_rate(one, "taken") for one in looped),
            made_per_s=sum(_rate(one, "made") for one in looped),
            capable_per_s=sum(_capable(one) for one in looped),
            fill=sum(self._fills) / len(self._fills) if self._fills else 0.0,
            wait_share=min(1.0, waited / in_loops), own_share=min(1.0, own / in_loops),
            free_cpu=max(0.0, cores - self._taken(state)),
        )  # fmt: skip

    def _used_by(self, life: Life) -> float:
        began, first, at, last = self._used.get(life, (0.0, 0.0, 0.0, 0.0))
        return max(0.0, last - first) / (at - began) if at > began else 0.0

    def _cores(self, state: JobState, kind: RoleKind) -> tuple[float, float]:
        """Cores of one of that kind, and what one has used; without a limit it has what it uses, one at least."""
        nodes = [node for node in state.of_kind(kind) if node.state is NodeState.JOINED]
        used = [self._used_by(Life(node.role, node.incarnation)) for node in nodes]
        mean = sum(used) / len(used) if used else 0.0
        limits = [node.cpu for node in nodes if node.cpu is not None]
        return (sum(limits) / len(limits) if limits else max(1.0, mean)), mean

    def _taken(self, state: JobState) -> float:
        """Cores that the job's roles have, or use where they have no limit."""
        nodes = [node for node in state.nodes.values() if node.state is not NodeState.GONE]
        return sum(self._used_by(Life(node.role, node.incarnation)) if node.cpu is None else node.cpu for node in nodes)


def _grew(one: Fed, name: str) -> float:
    return float(max(0, getattr(one.last, name) - getattr(one.first, name)))


def _rate(one: Fed, name: str) -> float:
    return _grew(one, name) / (one.at - one.since)


def _capable(one: Fed) -> float:
    """Mini-batches a second of a trainer that has nothing to do with making them."""
    rest = _grew(one, "looped_s") - _grew(one, "waited_s") - _grew(one, "read_s") - _grew(one, "stateless_s")
    return _grew(one, "taken") / max(rest, 1e-3 * _grew(one, "looped_s"), 1e-9)
