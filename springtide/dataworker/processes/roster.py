"""Pure. Track a process's data workers (starting, serving, leaving), replace dead ones, and decide when to give up.

In: the wanted number and events of processes, one at a time. Out: actions, in order. Next: supervisor.py applies them
to real processes.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

HOPELESS = 12  # limit of killed data workers in a row, each replacing the previous one, without any batch made.
# The limit is higher than the deaths by a single poison batch: dispatch.DEATHS, then worker_pool.DEADLY further tries.
UNFIT = 2  # the same limit for data workers that exit by themselves: the next would report the same startup error


class StartWorker(NamedTuple):
    """Action: start a data worker under this number."""

    number: int


class AttachWorker(NamedTuple):
    """Action: take batches from the data worker at this address."""

    number: int
    address: str


class DrainWorker(NamedTuple):
    """Action: send the data worker no more requests; it ends after its pending batches are fetched."""

    number: int


class KillWorker(NamedTuple):
    """Action: kill a data worker that does not serve yet and is no longer wanted."""

    number: int


class DetachWorker(NamedTuple):
    """Action: detach a lost data worker; its pending batches go to other data workers."""

    number: int


class StopStarting(NamedTuple):
    """Action: start no more data workers."""

    why: str
    deadly: bool
    """True if signals killed them. The trainer then does not make the batches itself, because they might kill it
    too.
    """


Action = StartWorker | AttachWorker | DrainWorker | KillWorker | DetachWorker | StopStarting


class WorkerPhase(Enum):
    """Lifecycle phase of a data worker."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


@dataclass(slots=True)
class _Member:
    phase: WorkerPhase
    futile: int
    """Number of predecessors in a row that died without any batch made."""
    made_before: int


@dataclass(slots=True)
class WorkerRoster:
    """State machine of the data workers: events in, actions out."""

    wanted: int = 0
    members: dict[int, _Member] = field(default_factory=dict)
    given_up: StopStarting | None = None
    deaths: int = 0
    _numbers: int = 0

    @property
    def staying(self) -> list[int]:
        """Data workers that start or serve, and are not asked to leave."""
        return [number for number, member in self.members.items() if member.phase is not WorkerPhase.LEAVING]

    @property
    def serving(self) -> int:
        """Number of data workers that make batches now."""
        return sum(member.phase is WorkerPhase.SERVING for member in self.members.values())

    def resized(self, wanted: int, *, made: int) -> list[Action]:
        """Change the wanted number. `made` is the number of batches that all data workers have made so far."""
        self.wanted = wanted
        if self.given_up is not None:
            return []
        actions: list[Action] = []
        surplus = len(self.staying) - wanted
        # Starting data workers leave first, then the newest serving ones.
        order = sorted(self.staying, key=lambda number: (self.members[number].phase is WorkerPhase.SERVING, -number))
        for number in order[: max(0, surplus)]:
            starting = self.members[number].phase is WorkerPhase.STARTING
            self.members[number].phase = WorkerPhase.LEAVING
            actions.append(KillWorker(number) if starting else DrainWorker(number))
        for _ in range(max(0, -surplus)):
            actions.append(self._start(futile=0, made=made))
        return actions

    def ready(self, number: int, address: str) -> list[Action]:
        """Note that a data worker serves at this address."""
        member = self.members.get(number)
        if member is None or member.phase is not WorkerPhase.STARTING:
            return []
        member.phase = WorkerPhase.SERVING
        return [AttachWorker(number, address)]

    def ended(self, number: int, how: str, *, killed: bool, made: int) -> list[Action]:
        """Note the end of a process: `how` describes it, and `killed` says whether a signal ended it."""
        member = self.members.pop(number, None)
        if member is None:
            return []
        gone: list[Action] = [DetachWorker(number)]
        if member.phase is WorkerPhase.LEAVING:
            return gone
        self.deaths += 1
        futile = member.futile + 1 if made == member.made_before else 0
        if futile >= (HOPELESS if killed else UNFIT) and self.given_up is None:
            self.given_up = StopStarting(
                f"{futile} data workers in a row died without making a batch, the last one: {how}", deadly=killed
            )
            rest = [KillWorker(other) for other in self.staying]
            for kill in rest:
                self.members[kill.number].phase = WorkerPhase.LEAVING
            return [*gone, self.given_up, *rest]
        if self.given_up is not None or len(self.staying) >= self.wanted:
            return gone
        return [*gone, self._start(futile=futile, made=made)]

    def _start(self, *, futile: int, made: int) -> StartWorker:
        number, self._numbers = self._numbers, self._numbers + 1
        self.members[number] = _Member(WorkerPhase.STARTING, futile, made)
        return StartWorker(number)
