"""A data worker: makes the mini-batches that trainers ask for, one at a time, each trainer in turn.

In: a pipeline and which stage of it runs here (dataworker/processes/job_package.py). Out: batches, each with the name
it was asked for by. It keeps nothing: a batch that is asked for again, here or elsewhere, comes out the same. A stage
in the middle is to the one before it what a trainer is (dataworker/feed/connections.py): it passes on what it is asked
for as soon as it is asked; with nobody before it, it makes the earlier stages itself. Next:
dataworker/transport/channel.py, to the trainer's dataworker/feed/connections.py.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from springtide import errors
from springtide.data.source import UnreadableBatch, on_one_line
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.connections import StepAnswer, WantedBatch, WorkerConnections
from springtide.dataworker.feed.stage import Pipeline
from springtide.dataworker.transport import codec, listener, messages
from springtide.dataworker.transport.channel import BatchChannel
from springtide.domain.data.data_workers import FeedState
from springtide.rpc.transport.frames import BadFrame

log = logging.getLogger(__name__)

MOST_ASKED = 64  # by one trainer at a time; ours ask for dispatch.AHEAD
MOST_UNSENT = 3  # batches for one trainer that wait to be sent to another host
LOOK_S = 0.05  # while nothing can be made: how often it is seen who before us could take over
JOIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Request:
    """One batch that a trainer has asked for."""

    ask: messages.AskBatch
    indices: NDArray[np.int64]
    before: int | None = None
    """Its number at the stage before this one; None: it is made here from its indices."""
    dropped: bool = False


@dataclass(slots=True, eq=False)
class _Trainer:
    """Who asks, and what it waits for."""

    channel: BatchChannel
    requests: deque[_Request] = field(default_factory=deque)
    outbox: deque[tuple[messages.FeedMessage, codec.BatchMessage | None]] = field(default_factory=deque)
    """For the thread that sends: batches for another host, so that sending one and making the next go together."""
    making: _Request | None = None
    told_leaving: bool = False
    gone: bool = False


class _StageRunner:
    """Runs one stage of a pipeline, and the stages before it where nobody else has run them."""

    def __init__(self, pipeline: Pipeline, stage: int, seed: int, before: WorkerConnections | None) -> None:
        self._pipeline, self._stage, self._seed, self._before = pipeline, stage, seed, before

    def run(self, request: _Request, answer: StepAnswer) -> Any:
        """Make the batch; each stage has random numbers of its own."""
        name, made = request.ask.name, answer.tree if answer.made else request.indices
        for number in range(self._stage if answer.made else 0, self._stage + 1):
            stage = self._pipeline.stages[number]
            run = stage.run
            if number == self._stage and number > 0 and not answer.made and self._before is not None:
                self._before.types.update(codec.types_in(made))
            if name is not None:
                batch_rng.sow(self._seed, name if number == 0 else (*name, number), cuda=stage.device == "cuda")
            asks = request.ask.asks if number == 0 and hasattr(run, "keeping") else ()
            made = run.keeping(made, asks) if asks else run(made)  # type: ignore[attr-defined]
        return made


class DataWorker:
    """Listens from the moment it is made. `drain` ends it in order, `close` at once."""

    def __init__(
        self,
        pipeline: Pipeline,
        stage: int,
        secret: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 1,
        seed: int = 0,
        certificates: str = "",
    ) -> None:
        """`certificates`: a folder (`rpc.transport.tls`), where the job has TLS."""
        if not 0 <= stage < len(pipeline.stages):
            raise errors.BadInput(f"stage {stage} of a pipeline of {len(pipeline.stages)}: they count from 0")
        self.done = threading.Event()
        """Set when all that was asked for before `drain` is fetched, or it is closed."""
        self.made = 0
        """Batches made here."""
        self._threads = threads
        self._changed = threading.Condition()
        self._trainers: list[_Trainer] = []
        self._draining = self._closed = False
        self._waited_s, self._began = 0.0, time.perf_counter()
        self._before = (
            WorkerConnections(secret, types={}, heard=self._wake, certificates=certificates) if stage > 0 else None
        )
        self._runner = _StageRunner(pipeline, stage, seed, self._before)
        self._listener = listener.BatchListener(secret, host=host, port=port, certificates=certificates)
        self.address = self._listener.address
        self._ours = [
            threading.Thread(target=target, name=f"data-worker-{name}", daemon=True)
            for name, target in (("door", self._open_door), ("maker", self._make_all))
        ]
        for thread in self._ours:
            thread.start()

    def attach(self, worker: str, address: str) -> None:
        """A data worker of the stage before this one: it is asked for what this one is asked for."""
        if self._before is not None:
            self._before.attach(worker, address)

    def detach(self, worker: str) -> None:
        """Ask that one for nothing more."""
        if self._before is not None:
            self._before.detach(worker)

    def drain(self) -> None:
        """Take no more trainers and ask those that are here to ask no more; `done` is set when all have theirs."""
        with self._changed:
            self._draining = True
            trainers = list(self._trainers)
        for trainer in trainers:
            self._tell_leaving(trainer)
        self._listener.close()
        self._wake()

    def close(self) -> None:
        """End now; whoever waits for something asks someone else. Idempotent."""
        with self._changed:
            self._closed = True
            trainers = list(self._trainers)
            self._changed.notify_all()
        self._listener.close()
        for trainer in trainers:
            trainer.channel.close()
        if self._before is not None:
            self._before.close()
        for thread in self._ours:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)
        self.done.set()

    @property
    def state(self) -> FeedState | None:
        """How the stage before feeds this one: what was asked of it and came, and how long nothing could be made for
        want of it; None: this is the first stage."""
        before = self._before
        if before is None:
            return None
        return FeedState(
            made=before.made,
            taken=self.made,
            queued=before.queued,
            room=max(before.under_way, before.queued),
            workers=before.workers,
            waited_s=self._waited_s,
            looped_s=time.perf_counter() - self._began,
        )

    @property
    def trainers(self) -> int:
        """How many are connected."""
        return len(self._trainers)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # Trainers come and go, each with a thread that hears it, and one that sends to it where it is on another host.

    def _open_door(self) -> None:
        while True:
            try:
                trainer = _Trainer(self._listener.accept())
            except EOFError:
                return
            with self._changed:
                closed = self._closed
                self._trainers.append(trainer)
            threading.Thread(target=self._listen, args=(trainer,), name="data-worker-ear", daemon=True).start()
            if not trainer.channel.local:
                threading.Thread(target=self._send_all, args=(trainer,), name="data-worker-mouth", daemon=True).start()
            if self._draining:
                self._tell_leaving(trainer)
            if closed:
                trainer.channel.close()

    def _listen(self, trainer: _Trainer) -> None:
        try:
            while True:
                received = trainer.channel.recv()
                self._hear(trainer, messages.read(received.kind, received.fields))
        except (EOFError, OSError, BadFrame) as error:
            log.info("a trainer is gone: %s", str(error))  # not the error: its frames hold the package
        finally:
            self._forget(trainer)

    def _hear(self, trainer: _Trainer, word: messages.FeedMessage) -> None:
        if isinstance(word, messages.AskBatch):
            if len(word.indices) % 8 or len(trainer.requests) >= MOST_ASKED:
                raise BadFrame(f"{len(word.indices)} bytes of indices, {len(trainer.requests)} requests open")
            request = _Request(word, np.frombuffer(bytearray(word.indices), dtype="<i8").astype(np.int64, copy=False))
            if self._before is not None:
                request.before = self._before.want(WantedBatch(request.indices, word.name), word.asks)
            with self._changed:
                trainer.requests.append(request)
                self._changed.notify_all()
        elif isinstance(word, messages.DropBatch):
            with self._changed:
                for request in trainer.requests:
                    request.dropped |= request.ask.step == word.step
                if trainer.making is not None:
                    trainer.making.dropped |= trainer.making.ask.step == word.step
                self._changed.notify_all()
        else:
            raise BadFrame(f"a {type(word).__name__} from a trainer")

    def _forget(self, trainer: _Trainer) -> None:
        trainer.channel.close()
        with self._changed:
            trainer.gone = True
            self._trainers.remove(trainer)
            unmade = [request.before for request in trainer.requests if request.before is not None]
            trainer.requests.clear()
            self._changed.notify_all()
        if self._before is not None:
            self._before.take(*unmade)

    def _tell_leaving(self, trainer: _Trainer) -> None:
        with self._changed:
            if trainer.told_leaving:
                return
            trainer.told_leaving = True
        self._send(trainer, messages.WorkerLeaving())

    def _send(self, trainer: _Trainer, word: messages.FeedMessage, message: codec.BatchMessage | None = None) -> None:
        """Send it, or see to it that it is sent. What the user's code made may be changed by it afterwards."""
        if trainer.channel.local:
            _deliver(trainer.channel, word, message)
            return
        with self._changed:
            trainer.outbox.append((word, None if message is None else message.copied()))
            self._changed.notify_all()

    def _send_all(self, trainer: _Trainer) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: trainer.outbox or trainer.gone)
                if trainer.gone:
                    return
                word, message = trainer.outbox[0]
            _deliver(trainer.channel, word, message)
            with self._changed:
                trainer.outbox.popleft()
                self._changed.notify_all()

    # One thread makes batches.

    def _make_all(self) -> None:
        torch.set_num_threads(self._threads)  # of this thread alone
        while (found := self._next()) is not None:
            trainer, request = found
            word, message = self._answer(request)
            self._send(trainer, word, message)
            del word, message  # the next batch is made in the same memory, whose pages are there
            with self._changed:
                trainer.making = None
        self.done.set()

    def _next(self) -> tuple[_Trainer, _Request] | None:
        """The next request, each trainer in its turn; waits for one. None: there will be none."""
        with self._changed:
            while not self._closed:
                for trainer in self._trainers:
                    request = self._ready(trainer)
                    if request is not None:
                        trainer.requests.remove(request)
                        trainer.making = request
                        self._trainers.remove(trainer)
                        self._trainers.append(trainer)
                        return trainer, request
                if self._draining and not self._trainers:
                    return None
                waiting = self._before is not None and self._before.under_way > 0
                began = time.perf_counter()
                self._changed.wait(LOOK_S if waiting else None)
                if self._before is not None and waiting:
                    self._waited_s += time.perf_counter() - began
                    self._before.look()
            return None

    def _ready(self, trainer: _Trainer) -> _Request | None:
        """The first that can be answered. A trainer that does not fetch what was made for it gets no more."""
        if len(trainer.outbox) >= MOST_UNSENT:
            return None
        for request in trainer.requests:
            if request.before is None or request.dropped or self._before is None or self._before.alone:
                return request
            if self._before.settled(request.before) is not None or self._before.overdue(request.before):
                return request
        return None

    def _answer(self, request: _Request) -> tuple[messages.FeedMessage, codec.BatchMessage | None]:
        step = request.ask.step
        try:
            answer = self._fetch(request)
            if self._unwanted(request):
                return messages.BatchDropped(step), None
            tree = UnreadableBatch(answer.error) if answer.error else self._runner.run(request, answer)
            self.made += not answer.error
            if isinstance(tree, UnreadableBatch):
                return messages.BatchFailed(step, tree.error), None
            if self._unwanted(request):
                return messages.BatchDropped(step), None
            return messages.BatchMade(step, request.ask.name), codec.pack(tree)
        except (Exception, SystemExit) as error:  # whatever a user's code may raise
            return messages.BatchFailed(step, on_one_line(error)), None

    def _unwanted(self, request: _Request) -> bool:
        with self._changed:
            return request.dropped

    def _fetch(self, request: _Request) -> StepAnswer:
        """What the stage before has made of it; empty where it has to be made here."""
        if self._before is None or request.before is None:
            return StepAnswer()
        answer = self._before.settled(request.before) or StepAnswer()
        self._before.take(request.before)
        return answer


def _deliver(channel: BatchChannel, word: messages.FeedMessage, message: codec.BatchMessage | None) -> None:
    """Send it. What cannot be sent has failed; a trainer that cannot be answered is hung up on, so it asks others."""
    try:
        try:
            channel.send(messages.number(word), word, message)
        except errors.BadInput as error:  # larger than a message may be; nothing of it is sent
            if not isinstance(word, messages.BatchMade | messages.BatchFailed):
                raise
            channel.send(messages.number(failed := messages.BatchFailed(word.step, str(error))), failed)
    except OSError as error:
        log.info("a trainer cannot be answered: %s", error)
        channel.close()
