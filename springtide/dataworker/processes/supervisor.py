"""Starts, watches, replaces and drains a loader's data workers, and decides when to give up.

In: the number of data workers that dataworker/loader/loader.py wants. `WorkerRoster` is pure: it takes events of
processes, one at a time, and returns actions. `WorkerSupervisor` applies the actions to processes (local_processes.py),
and attaches them to the `BatchFeed`, which dispatches batches.
"""

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from springtide import errors
from springtide.dataworker.feed.feed import BatchFeed
from springtide.dataworker.processes.local_processes import LocalWorker

log = logging.getLogger(__name__)

# number of data workers in a row, each the replacement of the previous one, that may be killed before any makes a
# batch.
HOPELESS = 12
# One poison batch causes fewer deaths: dispatch.DEATHS, and then worker_pool.DEADLY further tries. the same limit for
# data workers that exit by themselves; the limit is low, because the next data worker would fail in the same way
UNFIT = 2
# seconds for a data worker to start; a large data set loads slowly, and a busy machine imports modules slowly
READY_WITHIN_S = 300.0


class WorkerAction(NamedTuple):
    """An action on the process of a data worker.

    start: start the process. attach: take batches from its address. drain: send the data worker no more requests; the
    process ends after its pending batches are fetched. kill: the data worker does not serve yet and is no longer
    needed. detach: the data worker is lost, and its pending batches go to other data workers.
    """

    what: Literal["start", "attach", "drain", "kill", "detach"]
    number: int
    address: str = ""


class GivenUp(NamedTuple):
    """The reason to start no more data workers."""

    why: str
    deadly: bool
    """True if signals killed the data workers. The trainer then does not make the batches itself, because they might
    kill the trainer too."""


class WorkerPhase(Enum):
    """Lifecycle phase of a data worker."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


@dataclass(slots=True)
class _Member:
    phase: WorkerPhase
    futile: int
    """Number of data workers that this one replaces in a row and that died without making a batch."""
    made_before: int


@dataclass(slots=True)
class WorkerRoster:
    """State machine of the data workers: takes events and returns actions."""

    wanted: int = 0
    members: dict[int, _Member] = field(default_factory=dict)
    given_up: GivenUp | None = None
    deaths: int = 0
    _numbers: int = 0

    @property
    def staying(self) -> list[int]:
        """Data workers that start or serve, except data workers that were asked to leave."""
        return [number for number, member in self.members.items() if member.phase is not WorkerPhase.LEAVING]

    def resized(self, wanted: int, *, made: int) -> list[WorkerAction]:
        """Change the wanted number. `made` is the number of batches that all data workers have made so far."""
        self.wanted = wanted
        if self.given_up is not None:
            return []
        actions: list[WorkerAction] = []
        surplus = len(self.staying) - wanted
        # Data workers that have not started completely leave first, and then the newest data workers that serve.
        order = sorted(self.staying, key=lambda number: (self.members[number].phase is WorkerPhase.SERVING, -number))
        for number in order[: max(0, surplus)]:
            starting = self.members[number].phase is WorkerPhase.STARTING
            self.members[number].phase = WorkerPhase.LEAVING
            actions.append(WorkerAction("kill" if starting else "drain", number))
        for _ in range(max(0, -surplus)):
            actions.append(self._start(futile=0, made=made))
        return actions

    def ready(self, number: int, address: str) -> list[WorkerAction]:
        member = self.members.get(number)
        if member is None or member.phase is not WorkerPhase.STARTING:
            return []
        member.phase = WorkerPhase.SERVING
        return [WorkerAction("attach", number, address)]

    def ended(self, number: int, how: str, *, killed: bool, made: int) -> list[WorkerAction]:
        """Note the end of a process: `how` describes the end, and `killed` says whether a signal was the cause."""
        member = self.members.pop(number, None)
        if member is None:
            return []
        gone: list[WorkerAction] = [WorkerAction("detach", number)]
        if member.phase is WorkerPhase.LEAVING:
            return gone
        self.deaths += 1
        futile = member.futile + 1 if made == member.made_before else 0
        if futile >= (HOPELESS if killed else UNFIT) and self.given_up is None:
            self.given_up = GivenUp(
                f"{futile} data workers in a row died without making a batch, the last one: {how}", deadly=killed
            )
            rest = [WorkerAction("kill", other) for other in self.staying]
            for kill in rest:
                self.members[kill.number].phase = WorkerPhase.LEAVING
            return [*gone, *rest]
        if self.given_up is not None or len(self.staying) >= self.wanted:
            return gone
        return [*gone, self._start(futile=futile, made=made)]

    def _start(self, *, futile: int, made: int) -> WorkerAction:
        number, self._numbers = self._numbers, self._numbers + 1
        self.members[number] = _Member(WorkerPhase.STARTING, futile, made)
        return WorkerAction("start", number)


class WorkerSupervisor:
    """Supervisor of data workers. `resize` sets the number of data workers; `failed` says why no more will start."""

    def __init__(self, feed: BatchFeed, start: Callable[[int], LocalWorker]) -> None:
        self._feed = feed
        self._start = start
        self._roster = WorkerRoster()
        self._workers: dict[int, LocalWorker] = {}
        self._events: queue.SimpleQueue[Callable[[], list[WorkerAction]] | None] = queue.SimpleQueue()
        self._watchers: list[threading.Thread] = []
        self._owner = os.getpid()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="springtide-supervisor", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> GivenUp | None:
        return self._roster.given_up

    @property
    def deaths(self) -> int:
        """Number of data workers that ended although the supervisor did not ask them to end."""
        return self._roster.deaths

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in list(self._workers.values()) if worker.pid is not None]

    def resize(self, wanted: int) -> None:
        """Set the wanted number of data workers; returns immediately."""
        self._events.put(lambda: self._roster.resized(wanted, made=self._feed.state.made))

    def close(self) -> None:
        if self._closing or os.getpid() != self._owner:
            return
        self._closing = True
        self._events.put(None)
        # the garbage collector may call this method from any of these threads
        if threading.current_thread() not in (self._thread, *self._watchers):
            self._thread.join()

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            for action in event():
                self._do(action)
            self._watchers = [watcher for watcher in self._watchers if watcher.is_alive()]
        for worker in list(self._workers.values()):
            worker.kill()
        for watcher in self._watchers:
            watcher.join()

    def _do(self, action: WorkerAction) -> None:
        number = action.number
        match action.what:
            case "start":
                self._begin(number)
            case "attach":
                self._feed.attach(_name(number), action.address)
            case "drain":
                self._feed.detach(_name(number))
                self._workers[number].drain()
            case "kill":
                if number in self._workers:
                    self._workers[number].kill()
            case "detach":
                self._feed.detach(_name(number))
                self._workers.pop(number, None)

    def _begin(self, number: int) -> None:
        worker = self._workers[number] = self._start(number)
        watcher = threading.Thread(
            target=self._watch, args=(number, worker), name=f"springtide-data-worker-{number}", daemon=True
        )
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, number: int, worker: LocalWorker) -> None:
        why = ""
        try:
            address = worker.ready(READY_WITHIN_S)
            self._events.put(lambda: self._roster.ready(number, address))
        except errors.SpringtideError as error:
            why = f": {error}"
        status = worker.wait()
        self._events.put(lambda: self._ended(number, described(status) + why, killed=status < 0))

    def _ended(self, number: int, how: str, *, killed: bool) -> list[WorkerAction]:
        deaths, failed = self.deaths, self.failed
        actions = self._roster.ended(number, how, killed=killed, made=self._feed.state.made)
        if self.failed is not None and failed is None:
            log.warning("%s; no further data workers are started", self.failed.why)
        elif self.deaths > deaths and failed is None:
            replaced = any(action.what == "start" for action in actions)
            log.warning(
                "data worker %d ended (%s); %s",
                number,
                how,
                "starting another data worker" if replaced else "it is not replaced",
            )
        return actions


def described(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _name(number: int) -> str:
    return f"data-worker-{number}"
