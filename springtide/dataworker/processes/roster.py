"""Pure. The data workers of one process: who is starting, serving or leaving, who is replaced, when to give up.

In: the wanted number and events of processes, one at a time. Out: actions, in order. Next: supervisor.py carries them
out with real processes.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

HOPELESS = (
    12  # data workers in a row, each in place of the one before, that were killed while no batch was made at all:
)
# more than one deadly batch can kill before it is called poison (dispatch.DEATHS, and again as often as staff.DEADLY)
UNFIT = 2  # the same of such as ended by themselves: they say why they cannot begin, and the next will say the same


class StartWorker(NamedTuple):
    """Start a data worker under this number."""

    number: int


class AttachWorker(NamedTuple):
    """Take batches from it."""

    number: int
    address: str


class DrainWorker(NamedTuple):
    """Send it no more indices; fetch batches under way, then it ends."""

    number: int


class KillWorker(NamedTuple):
    """It does not serve yet and is no longer wanted."""

    number: int


class DetachWorker(NamedTuple):
    """It is gone: its batches under way go to others."""

    number: int


class StopStarting(NamedTuple):
    """Start no more data workers."""

    why: str
    deadly: bool
    """They were killed by a signal: the same work might kill the trainer too, so it does not do it itself."""


Action = StartWorker | AttachWorker | DrainWorker | KillWorker | DetachWorker | StopStarting


class WorkerPhase(Enum):
    """Phase of a data worker's life."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


@dataclass(slots=True)
class _Member:
    phase: WorkerPhase
    futile: int
    """How many before it, each in place of the last, died while no batch was made."""
    made_before: int


@dataclass(slots=True)
class WorkerRoster:
    """Events in, actions out."""

    wanted: int = 0
    members: dict[int, _Member] = field(default_factory=dict)
    given_up: StopStarting | None = None
    deaths: int = 0
    _numbers: int = 0

    @property
    def staying(self) -> list[int]:
        """Those that are here or on their way, and are not asked to leave."""
        return [number for number, member in self.members.items() if member.phase is not WorkerPhase.LEAVING]

    @property
    def serving(self) -> int:
        """How many make batches now."""
        return sum(member.phase is WorkerPhase.SERVING for member in self.members.values())

    def resized(self, wanted: int, *, made: int) -> list[Action]:
        """So many are wanted from now on; `made` is how many batches data workers have made in all."""
        self.wanted = wanted
        if self.given_up is not None:
            return []
        actions: list[Action] = []
        surplus = len(self.staying) - wanted
        # The last to come are the first to go, and those that do not serve yet before all others.
        order = sorted(self.staying, key=lambda number: (self.members[number].phase is WorkerPhase.SERVING, -number))
        for number in order[: max(0, surplus)]:
            starting = self.members[number].phase is WorkerPhase.STARTING
            self.members[number].phase = WorkerPhase.LEAVING
            actions.append(KillWorker(number) if starting else DrainWorker(number))
        for _ in range(max(0, -surplus)):
            actions.append(self._start(futile=0, made=made))
        return actions

    def ready(self, number: int, address: str) -> list[Action]:
        """It serves at this address."""
        member = self.members.get(number)
        if member is None or member.phase is not WorkerPhase.STARTING:
            return []
        member.phase = WorkerPhase.SERVING
        return [AttachWorker(number, address)]

    def ended(self, number: int, how: str, *, killed: bool, made: int) -> list[Action]:
        """Its process is gone: how, in words, and whether a signal has killed it."""
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
