"""Data worker: makes the mini-batches that trainers request, one at a time, each trainer in turn.

In: a `Pipeline`, and the stage that this data worker runs. Out: batches, each labelled with the name of its request. A
data worker keeps no state, so a repeated request gives the same batch on any data worker. A middle stage requests its
input from the previous stage, like a trainer (connections.py). If no data worker runs the previous stage, this data
worker also runs the earlier stages.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from springtide import errors
from springtide.data.source import UnreadableBatch, on_one_line
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.feed.connections import (
    AskBatch,
    BatchDropped,
    BatchFailed,
    BatchMade,
    DropBatch,
    FeedMessage,
    StepAnswer,
    WantedBatch,
    WorkerConnections,
    WorkerLeaving,
    read_message,
    send_message,
)
from springtide.dataworker.transport import codec, handshake
from springtide.dataworker.transport.channel import BatchChannel
from springtide.domain.data.data_workers import FeedState
from springtide.rpc.transport.frames import BadFrame

log = logging.getLogger(__name__)

MOST_ASKED = 64  # most open requests of a trainer; Springtide's trainers send at most dispatch.AHEAD
MOST_UNSENT = 3  # most unsent batches for a trainer on another host
POLL_S = 0.05  # pause between two checks for overdue steps of the previous stage
JOIN_S = 5.0


Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage of the pipeline, which runs on a single kind of device."""

    name: str
    run: Callable[[Any], Any]
    """Function of this stage. The first stage takes an int64 array of sample indices; each later stage takes the
    previous result.

    The result is a tree (tuples, lists, dicts, named tuples, dataclasses) of tensors, arrays, numbers and strings.
    """
    device: Device = "cpu"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All stages of a job in order. Trainers get the result of the last stage."""

    stages: tuple[PipelineStage, ...]

    def __call__(self, indices: Any) -> Any:
        made = indices
        for stage in self.stages:
            made = stage.run(made)
        return made


@dataclass(slots=True, eq=False)
class _Request:
    """A batch that a trainer has requested."""

    ask: AskBatch
    indices: NDArray[np.int64]
    before: int | None = None
    """Number of the request at the previous stage; None if this worker makes the batch from its indices."""
    dropped: bool = False


@dataclass(slots=True, eq=False)
class _Trainer:
    """A connected trainer and its open requests."""

    channel: BatchChannel
    requests: deque[_Request] = field(default_factory=deque)
    outbox: deque[tuple[FeedMessage, codec.BatchMessage | None]] = field(default_factory=deque)
    """Batches to send to a trainer on another host. A thread sends these batches while the data worker makes the next
    batch.
    """
    making: _Request | None = None
    told_leaving: bool = False
    gone: bool = False


class _StageRunner:
    """Runs a stage of a pipeline. If no other data worker runs the earlier stages, this data worker runs them first."""

    def __init__(self, pipeline: Pipeline, stage: int, seed: int, before: WorkerConnections | None) -> None:
        self._pipeline, self._stage, self._seed, self._before = pipeline, stage, seed, before

    def run(self, request: _Request, answer: StepAnswer) -> Any:
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
    """Data worker that serves as soon as it is constructed. `drain` ends the data worker gracefully, `close`
    immediately."""

    def __init__(
        self,
        pipeline: Pipeline,
        stage: int,
        secret: bytes,
        *,
        host: str = "127.0.0.1",
        threads: int = 1,
        seed: int = 0,
        certificates: str = "",
    ) -> None:
        """Start serving. `certificates`: a folder (`rpc.transport.tls`), if the job uses TLS."""
        if not 0 <= stage < len(pipeline.stages):
            raise errors.BadInput(f"stage={stage}: expected a stage from 0 to {len(pipeline.stages) - 1}")
        self.done = threading.Event()
        """Set when all requests from before `drain` are fetched, or on `close`."""
        self.made = 0
        """Number of batches made here."""
        self._threads = threads
        self._changed = threading.Condition()
        self._trainers: list[_Trainer] = []
        self._draining = self._closed = False
        self._waited_s, self._began = 0.0, time.perf_counter()
        self._before = (
            WorkerConnections(secret, types={}, on_change=self._wake, certificates=certificates) if stage > 0 else None
        )
        self._runner = _StageRunner(pipeline, stage, seed, self._before)
        self._listener = handshake.FeedListener(secret, host=host, certificates=certificates)
        self.address = self._listener.address
        self._ours = [
            threading.Thread(target=target, name=f"data-worker-{name}", daemon=True)
            for name, target in (("accept", self._accept_all), ("make", self._make_all))
        ]
        for thread in self._ours:
            thread.start()

    def attach(self, worker: str, address: str) -> None:
        if self._before is not None:
            self._before.attach(worker, address)

    def detach(self, worker: str) -> None:
        if self._before is not None:
            self._before.detach(worker)

    def drain(self) -> None:
        """Accept no more trainers and requests; set `done` when all trainers have their batches."""
        with self._changed:
            self._draining = True
            trainers = list(self._trainers)
        for trainer in trainers:
            self._tell_leaving(trainer)
        self._listener.close()
        self._wake()

    def close(self) -> None:
        """Stop immediately; trainers then ask another data worker. Idempotent."""
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
        """Statistics of the input from the previous stage, with the time that this stage waited. None for the first
        stage."""
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

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # Each trainer has a thread that receives its requests; a trainer on another host also has a thread that sends its
    # batches.

    def _accept_all(self) -> None:
        while True:
            try:
                trainer = _Trainer(self._listener.accept())
            except EOFError:
                return
            with self._changed:
                closed = self._closed
                self._trainers.append(trainer)
            threading.Thread(target=self._listen, args=(trainer,), name="data-worker-receive", daemon=True).start()
            if not trainer.channel.local:
                threading.Thread(target=self._send_all, args=(trainer,), name="data-worker-send", daemon=True).start()
            if self._draining:
                self._tell_leaving(trainer)
            if closed:
                trainer.channel.close()

    def _listen(self, trainer: _Trainer) -> None:
        try:
            while True:
                self._on_message(trainer, read_message(trainer.channel.recv()))
        except (EOFError, OSError, BadFrame) as error:
            # log only the text: the frames of the error object would keep the package in memory
            log.info("a trainer disconnected: %s", str(error))
        finally:
            self._forget(trainer)

    def _on_message(self, trainer: _Trainer, message: FeedMessage) -> None:
        if isinstance(message, AskBatch):
            if len(message.indices) % 8 or len(trainer.requests) >= MOST_ASKED:
                raise BadFrame(f"{len(message.indices)} bytes of indices, {len(trainer.requests)} requests open")
            request = _Request(
                message, np.frombuffer(bytearray(message.indices), dtype="<i8").astype(np.int64, copy=False)
            )
            if self._before is not None:
                request.before = self._before.request(WantedBatch(request.indices, message.name), message.asks)
            with self._changed:
                trainer.requests.append(request)
                self._changed.notify_all()
        elif isinstance(message, DropBatch):
            with self._changed:
                for request in trainer.requests:
                    request.dropped |= request.ask.step == message.step
                if trainer.making is not None:
                    trainer.making.dropped |= trainer.making.ask.step == message.step
                self._changed.notify_all()
        else:
            raise BadFrame(f"a {type(message).__name__} from a trainer")

    def _forget(self, trainer: _Trainer) -> None:
        trainer.channel.close()
        with self._changed:
            trainer.gone = True
            self._trainers.remove(trainer)
            unmade = [request.before for request in trainer.requests if request.before is not None]
            trainer.requests.clear()
            self._changed.notify_all()
        if self._before is not None:
            self._before.forget(*unmade)

    def _tell_leaving(self, trainer: _Trainer) -> None:
        with self._changed:
            if trainer.told_leaving:
                return
            trainer.told_leaving = True
        self._send(trainer, WorkerLeaving())

    def _send(self, trainer: _Trainer, word: FeedMessage, message: codec.BatchMessage | None = None) -> None:
        """Send a message now or queue it. Queued batches are copied, because user code may change a batch later."""
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

    # A single thread makes batches.

    def _make_all(self) -> None:
        torch.set_num_threads(self._threads)  # in torch, this number applies to the calling thread only
        while (found := self._next()) is not None:
            trainer, request = found
            word, message = self._answer(request)
            self._send(trainer, word, message)
            del word, message  # free the references, because the next batch reuses this memory
            with self._changed:
                trainer.making = None
        self.done.set()

    def _next(self) -> tuple[_Trainer, _Request] | None:
        """Wait for the next request; serve the trainers in turn. None means that no more requests will come."""
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
                self._changed.wait(POLL_S if waiting else None)
                if self._before is not None and waiting:
                    self._waited_s += time.perf_counter() - began
                    self._before.poll()
            return None

    def _ready(self, trainer: _Trainer) -> _Request | None:
        """Return the first request that can be answered. A trainer that does not fetch its finished batches gets no
        further batches.
        """
        if len(trainer.outbox) >= MOST_UNSENT:
            return None
        for request in trainer.requests:
            if request.before is None or request.dropped or self._before is None or self._before.alone:
                return request
            if self._before.wait(request.before) is not None or self._before.overdue(request.before):
                return request
        return None

    def _answer(self, request: _Request) -> tuple[FeedMessage, codec.BatchMessage | None]:
        step = request.ask.step
        try:
            answer = self._fetch(request)
            if self._is_dropped(request):
                return BatchDropped(step), None
            tree = UnreadableBatch(answer.error) if answer.error else self._runner.run(request, answer)
            self.made += not answer.error
            if isinstance(tree, UnreadableBatch):
                return BatchFailed(step, tree.error), None
            if self._is_dropped(request):
                return BatchDropped(step), None
            return BatchMade(step, request.ask.name), codec.pack(tree)
        except (Exception, SystemExit) as error:  # user code may raise anything
            return BatchFailed(step, on_one_line(error)), None

    def _is_dropped(self, request: _Request) -> bool:
        with self._changed:
            return request.dropped

    def _fetch(self, request: _Request) -> StepAnswer:
        if self._before is None or request.before is None:
            return StepAnswer()
        answer = self._before.wait(request.before) or StepAnswer()
        self._before.forget(request.before)
        return answer


def _deliver(channel: BatchChannel, message: FeedMessage, batch: codec.BatchMessage | None) -> None:
    """Send a message. Disconnect a trainer to which no answer can be sent, so that the trainer asks another data
    worker.
    """
    try:
        try:
            send_message(channel, message, batch)
        except errors.BadInput as error:  # the batch exceeds the message limit; nothing was sent
            if not isinstance(message, BatchMade | BatchFailed):
                raise
            send_message(channel, BatchFailed(message.step, str(error)))
    except OSError as error:
        log.info("cannot answer a trainer: %s", error)
        channel.close()
