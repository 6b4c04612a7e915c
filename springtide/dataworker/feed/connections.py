"""Connect a trainer to its data workers: send requests, receive batches.

In: requests of dataworker/feed/feed.py, or of a middle stage (dataworker/feed/worker.py). Out: batches by number, each
once. dataworker/feed/dispatch.py assigns the requests. The trainer runs one thread for each data worker. All threads
end with `close`. A forked child needs none of these threads.
"""

import contextlib
import functools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.dataworker.feed import dispatch
from springtide.dataworker.feed.dispatch import Dispatch, StepFate
from springtide.dataworker.transport.channel import BatchChannel, Payload, ReceivedMessage
from springtide.dataworker.transport.codec import BatchMessage
from springtide.dataworker.transport.handshake import connect
from springtide.domain.data.data_workers import BatchName
from springtide.rpc.transport import auth
from springtide.rpc.transport.frames import BadFrame

log = logging.getLogger(__name__)

CALL_AGAIN_S = (0.05, 2.0)  # seconds: the first and the longest pause between two connection attempts
JOIN_S = 5.0  # most seconds to join a thread in `close`; by then, no thread waits for anything


class FeedMessage(msgspec.Struct, array_like=True, frozen=True):
    """Base class of the messages between a trainer and a data worker. Batches are not among these messages.

    A data worker answers each `AskBatch` with `BatchMade` (and the batch), `BatchFailed` or `BatchDropped`.
    """


class AskBatch(FeedMessage, frozen=True):
    """Message of a trainer: make the batch of these samples."""

    step: int
    indices: bytes
    """Sample indices, little-endian int64."""
    name: BatchName | None
    asks: tuple[int, ...] = ()
    """Extra leaves that this trainer needs, besides the leaves that the split sends
    (dataworker/split/program/payload.py).
    """


class DropBatch(FeedMessage, frozen=True):
    """Message of a trainer: cancel a request."""

    step: int


class BatchMade(FeedMessage, frozen=True):
    """Message of a data worker: the batch, under the name of its request."""

    step: int
    name: BatchName | None


class BatchFailed(FeedMessage, frozen=True):
    """Message of a data worker: user code raised."""

    step: int
    why: str


class BatchDropped(FeedMessage, frozen=True):
    """Message of a data worker: the request was cancelled."""

    step: int


class WorkerLeaving(FeedMessage, frozen=True):
    """Message of a data worker that leaves: the data worker accepts no more requests, but still answers open ones."""


KINDS: tuple[type[FeedMessage], ...] = (AskBatch, DropBatch, BatchMade, BatchFailed, BatchDropped, WorkerLeaving)


def send_message(to: BatchChannel, message: FeedMessage, batch: BatchMessage | None = None) -> None:
    to.send(KINDS.index(type(message)), message, batch)


def read_message(received: ReceivedMessage) -> FeedMessage:
    if not 0 <= received.kind < len(KINDS):
        raise BadFrame(f"a message of kind {received.kind}, expected 0 to {len(KINDS) - 1}")
    try:
        return msgspec.convert(received.fields, KINDS[received.kind])
    except msgspec.ValidationError as error:
        raise BadFrame(f"not a {KINDS[received.kind].__name__}: {error}") from error


class WantedBatch(NamedTuple):
    """A mini-batch that a trainer wants. A request without indices asks for nothing, and only keeps its place in the
    order."""

    indices: NDArray[np.int64]
    name: BatchName | None
    group: "WantedBatch | None" = None
    """The batch of the whole bsp group, if this request is only one rank's part of that batch."""


class StepAnswer(NamedTuple):
    """The result of a step: a batch, or an error. If the result has neither a batch nor an error, the trainer must make
    the batch itself.
    """

    tree: Any = None
    made: bool = False
    error: str = ""


@dataclass(slots=True, eq=False)
class _Link:
    """A data worker, and the thread that talks to it."""

    worker: str
    address: str
    wake: int
    outbox: deque[FeedMessage] = field(default_factory=deque)
    channel: BatchChannel | None = None
    """The open channel; None if there is no connection."""
    stopped: bool = False
    """True if the trainer no longer needs this data worker."""
    thread: threading.Thread | None = None


class WorkerConnections:
    """Connections of a trainer. Thread-safe. A thread that changes the state calls `on_change` afterwards."""

    def __init__(
        self,
        secret: bytes,
        *,
        types: Mapping[str, type],
        on_change: Callable[[], None] = lambda: None,
        certificates: str = "",
    ) -> None:
        self.types = dict(types)
        self.made = 0
        """Number of new batches received."""
        self.batch_bytes: int | None = None
        """Largest size of recent batches in bytes, which decays by a tenth with each batch; None before the first."""
        self._connect = functools.partial(connect, secret=secret, certificates=certificates)
        self._on_change = on_change
        self._pid = os.getpid()
        # the code enters this lock directly, because an interrupt inside Condition.__enter__ would leave the lock held
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._dispatch = Dispatch()
        self._links: dict[str, _Link] = {}
        self._ending: set[_Link] = set()
        self._wanted: dict[int, AskBatch] = {}
        self._answers: dict[int, StepAnswer] = {}
        self._steps = 0
        self._closed = False

    def attach(self, worker: str, address: str) -> None:
        """Connect to the data worker as soon as it is reachable. Existing connections stay."""
        with self._lock:
            known = self._links.get(worker)
            if self._closed or (known is not None and known.address == address):
                return
            if known is not None:
                self._hang_up(known)
            link = _Link(worker, address, os.eventfd(0, os.EFD_CLOEXEC))
            self._links[worker] = link
            link.thread = threading.Thread(target=self._run, args=(link,), name=f"feed-{worker}", daemon=True)
            link.thread.start()

    def detach(self, worker: str) -> None:
        """Send no more requests to this data worker, but fetch its pending batches."""
        with self._lock:
            if worker in self._links:
                self._leave(self._links[worker])

    def request(self, wanted: WantedBatch, asks: tuple[int, ...] = ()) -> int:
        """Request a batch together with the extra leaves in `asks`; return the number of the request."""
        with self._lock:
            step, self._steps = self._steps, self._steps + 1
            indices = np.ascontiguousarray(wanted.indices, dtype="<i8").tobytes()
            self._wanted[step] = AskBatch(step, indices, wanted.name, asks)
            self._execute(self._dispatch.add_step(step, at=time.monotonic()))
            return step

    def wait(self, step: int, seconds: float = 0.0) -> StepAnswer | None:
        """Wait for the result of a step. Return None after `seconds`, or if no data worker is left."""
        with self._lock:
            if self._settled(step) is None and not self._dispatch.deserted and seconds > 0:
                self._execute(self._dispatch.poll(at=time.monotonic()))
                self._changed.wait(seconds)
            return self._settled(step)

    def forget(self, *steps: int) -> None:
        """Forget steps that are finished or no longer wanted."""
        with self._lock:
            for step in steps:
                self._answers.pop(step, None)
                if self._wanted.pop(step, None) is not None:
                    self._execute(self._dispatch.remove_step(step, at=time.monotonic()))

    def poll(self) -> None:
        """Let idle data workers take over overdue steps."""
        with self._lock:
            self._execute(self._dispatch.poll(at=time.monotonic()))

    def overdue(self, step: int) -> bool:
        """Return True if a step is so late that its data worker may never answer."""
        with self._lock:
            return self._dispatch.overdue(step, at=time.monotonic())

    @property
    def workers(self) -> int:
        return self._dispatch.open

    @property
    def alone(self) -> bool:
        """True if no data worker accepts new steps or still works on a step."""
        return self._dispatch.deserted

    @property
    def queued(self) -> int:
        return len(self._answers)

    @property
    def under_way(self) -> int:
        return len(self._wanted)

    def close(self) -> None:
        """Disconnect from all data workers; idempotent. Does nothing in a forked child: the parent owns the threads."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            for link in [*self._links.values(), *self._ending]:
                self._hang_up(link)
            ending = list(self._ending)
        for link in ending:
            if link.thread is not None and link.thread is not threading.current_thread():
                link.thread.join(JOIN_S)

    # The caller of the methods below holds the lock:

    def _settled(self, step: int) -> StepAnswer | None:
        state = self._dispatch.steps[step]
        if state.fate is StepFate.WAITING:
            return None
        if state.fate is StepFate.FAILED:
            return StepAnswer(error=state.why)
        return self._answers.get(step) or StepAnswer()

    def _execute(self, orders: list[dispatch.DispatchOrder]) -> None:
        for order in orders:
            link = self._links.get(order.worker)
            if link is None:
                continue
            if isinstance(order, dispatch.ReleaseWorker):
                self._stop(link)
                continue
            assign = isinstance(order, dispatch.AssignStep)
            link.outbox.append(self._wanted[order.step] if assign else DropBatch(order.step))
            if link.thread is not threading.current_thread():
                os.eventfd_write(link.wake, 1)

    def _leave(self, link: _Link) -> None:
        if link.worker in self._dispatch.workers:
            self._execute(self._dispatch.leaving(link.worker, at=time.monotonic()))
        else:
            self._stop(link)

    def _lose(self, link: _Link) -> None:
        if self._links.get(link.worker) is link:
            link.outbox.clear()
            self._execute(self._dispatch.lost(link.worker, at=time.monotonic()))
        self._changed.notify_all()

    def _stop(self, link: _Link) -> None:
        if not link.stopped:
            link.stopped = True
            del self._links[link.worker]
            self._ending.add(link)
            os.eventfd_write(link.wake, 1)

    def _hang_up(self, link: _Link) -> None:
        self._lose(link)
        self._stop(link)
        if link.channel is not None:
            link.channel.close()  # closing the channel wakes the thread

    # These methods run in the thread of a link:

    def _run(self, link: _Link) -> None:
        pause = CALL_AGAIN_S[0]
        try:
            while not link.stopped:
                if self._call(link):
                    pause = CALL_AGAIN_S[0]
                    self._talk(link)
                elif not link.stopped:
                    select.select([link.wake], [], [], pause)
                    pause = min(2 * pause, CALL_AGAIN_S[1])
        finally:
            with self._lock:
                self._lose(link)
                self._stop(link)
                self._ending.discard(link)
                os.close(link.wake)
            self._on_change()

    def _call(self, link: _Link) -> bool:
        try:
            connected = self._connect(link.address)
        except auth.Rejected as error:
            log.warning("data worker %s at %s does not belong to this job: %s", link.worker, link.address, error)
            with self._lock:
                self._stop(link)
            return False
        except (OSError, EOFError, errors.SpringtideError) as error:
            log.debug("cannot reach data worker %s at %s: %s", link.worker, link.address, error)
            return False
        with self._lock:
            link.channel = connected
            if link.stopped:
                return True
            self._execute(self._dispatch.joined(link.worker, at=time.monotonic()))
            self._changed.notify_all()
        self._on_change()
        return True

    def _talk(self, link: _Link) -> None:
        """Serve a connection until the data worker is gone or no longer wanted."""
        assert link.channel is not None
        ready = select.poll()
        ready.register(link.channel.fileno(), select.POLLIN)
        ready.register(link.wake, select.POLLIN)
        try:
            while not link.stopped:
                while (message := _first(link.outbox)) is not None:
                    send_message(link.channel, message)
                link.channel.await_like(self.types)
                for descriptor, _ in ready.poll():
                    if descriptor == link.wake:
                        os.eventfd_read(link.wake)
                    else:
                        self._on_message(link, link.channel.recv(self.types))
        except (OSError, EOFError, BadFrame) as error:
            if not link.stopped:
                log.info("lost data worker %s: %s", link.worker, error or type(error).__name__)
        finally:
            with self._lock:
                self._lose(link)
                gone, link.channel = link.channel, None
            with contextlib.suppress(OSError):
                gone.close()
            self._on_change()

    def _on_message(self, link: _Link, received: ReceivedMessage) -> None:
        message = read_message(received)
        at = time.monotonic()
        answer = None
        if isinstance(message, BatchMade):
            if received.payload is None:
                raise BadFrame(f"step {message.step} arrived without its batch")
            answer = self._unpack(message, received.payload)
        with self._lock:
            if isinstance(message, BatchMade) and answer is not None:
                self._on_made(link, message, answer, at)
            elif isinstance(message, BatchFailed):
                self._execute(self._dispatch.failed(link.worker, message.step, message.why, at=at))
            elif isinstance(message, BatchDropped):
                self._execute(self._dispatch.dropped(link.worker, message.step, at=at))
            elif isinstance(message, WorkerLeaving):
                self._leave(link)
            else:
                raise BadFrame(f"a {type(message).__name__} from a data worker")
            self._changed.notify_all()
        self._on_change()

    def _unpack(self, message: BatchMade, payload: Payload) -> StepAnswer:
        with self._lock:
            wanted = self._wanted.get(message.step)
            news = self._dispatch.awaits(message.step)
        if not news or wanted is None:
            return StepAnswer()
        if message.name != wanted.name:
            raise BadFrame(f"step {message.step} arrived as {message.name}, expected {wanted.name}")
        self.batch_bytes = max(payload.size, int(0.9 * (self.batch_bytes or 0)))
        try:
            return StepAnswer(payload.tree(self.types), made=True)
        except BadFrame:
            raise
        except Exception as error:  # a type that this process does not know, or a user type whose code raises
            log.info("cannot decode a batch, so this process makes it: %s", error)
            return StepAnswer()

    def _on_made(self, link: _Link, message: BatchMade, answer: StepAnswer, at: float) -> None:
        if self._dispatch.awaits(message.step):
            self._answers[message.step] = answer
            self.made += answer.made
        self._execute(self._dispatch.made(link.worker, message.step, at=at))


def _first(outbox: deque[FeedMessage]) -> FeedMessage | None:
    """Return the next message. Return None if another thread has already taken the last message."""
    try:
        return outbox.popleft()
    except IndexError:
        return None
