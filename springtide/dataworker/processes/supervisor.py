"""Supervise the data workers of a process: start, watch, replace and drain them.

In: the number of data workers that dataworker/loader/loader.py wants. Out: data workers attached to its `BatchFeed`, or
detached. roster.py decides; local_processes.py has the processes. Next: dataworker/feed/feed.py dispatches batches to
attached data workers.
"""

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol

from springtide import errors
from springtide.dataworker.processes import roster
from springtide.dataworker.processes.roster import (
    AttachWorker,
    DetachWorker,
    DrainWorker,
    KillWorker,
    StartWorker,
    StopStarting,
    WorkerRoster,
)

log = logging.getLogger(__name__)

READY_WITHIN_S = 300.0  # a large data set loads slowly, and so do modules on a busy machine


class WorkerProcess(Protocol):
    """A data worker's process."""

    def ready(self, timeout_s: float) -> str:
        """Wait until the data worker serves; return its address."""

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the process; return its exit status and error text."""
        ...

    def drain(self) -> None:
        """Let the data worker finish its batches, and end."""

    def kill(self) -> None:
        """End the process now."""


class AttachTarget(Protocol):
    """The part of a `BatchFeed` that the supervisor uses."""

    def attach(self, worker: str, address: str) -> None:
        """Take batches from this data worker."""

    def detach(self, worker: str) -> None:
        """Send this data worker no more requests."""

    @property
    def state(self) -> Any:
        """Statistics of the feed."""


class WorkerSupervisor:
    """Supervisor of data workers. `resize` sets their number; `failed` says why no more will start."""

    def __init__(self, feed: AttachTarget, start: Callable[[int], WorkerProcess]) -> None:
        self.failed: StopStarting | None = None
        self._feed = feed
        self._start = start
        self._roster = WorkerRoster()
        self._workers: dict[int, WorkerProcess] = {}
        self._events: queue.SimpleQueue[Callable[[], list[roster.Action]] | None] = queue.SimpleQueue()
        self._watchers: list[threading.Thread] = []
        self._owner = os.getpid()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="springtide-supervisor", daemon=True)
        self._thread.start()

    @property
    def deaths(self) -> int:
        """Number of data workers that ended without a request to end."""
        return self._roster.deaths

    @property
    def pids(self) -> list[int]:
        """Process ids of the current data workers."""
        return [pid for worker in list(self._workers.values()) if (pid := getattr(worker, "pid", None)) is not None]

    def resize(self, wanted: int) -> None:
        """Set the wanted number of data workers; returns immediately."""
        self._events.put(lambda: self._roster.resized(wanted, made=self._feed.state.made))

    def close(self) -> None:
        """End all data workers, and wait until they are gone. Does nothing in a forked process."""
        if self._closing or os.getpid() != self._owner:
            return
        self._closing = True
        self._events.put(None)
        # the garbage collector may call this from any thread
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

    def _do(self, action: roster.Action) -> None:
        match action:
            case StartWorker(number):
                self._begin(number)
            case AttachWorker(number, address):
                self._feed.attach(_name(number), address)
            case DrainWorker(number):
                self._feed.detach(_name(number))
                self._workers[number].drain()
            case KillWorker(number):
                if number in self._workers:
                    self._workers[number].kill()
            case DetachWorker(number):
                self._feed.detach(_name(number))
                self._workers.pop(number, None)
            case StopStarting():
                self.failed = action
                log.warning("%s: no more are started", action.why)

    def _begin(self, number: int) -> None:
        worker = self._workers[number] = self._start(number)
        watcher = threading.Thread(
            target=self._watch, args=(number, worker), name=f"springtide-crew-{number}", daemon=True
        )
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, number: int, worker: WorkerProcess) -> None:
        said = ""
        try:
            address = worker.ready(READY_WITHIN_S)
            self._events.put(lambda: self._roster.ready(number, address))
        except errors.SpringtideError as error:
            said = str(error)
            worker.kill()
        status, last_words = worker.wait()
        said = said or last_words
        how = described(status) + (f": {said}" if said else "")
        self._events.put(lambda: self._ended(number, how, killed=status < 0))

    def _ended(self, number: int, how: str, *, killed: bool) -> list[roster.Action]:
        before = self._roster.deaths
        actions = self._roster.ended(number, how, killed=killed, made=self._feed.state.made)
        if self._roster.deaths > before and self.failed is None:
            does = (
                "another takes its place"
                if any(isinstance(action, StartWorker) for action in actions)
                else "it is let go"
            )
            log.warning("data worker %d ended (%s); %s", number, how, does)
        return actions


def described(status: int) -> str:
    """Describe an exit status."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in {one.value for one in signal.Signals} else f"signal {-status}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _name(number: int) -> str:
    return f"data-worker-{number}"
