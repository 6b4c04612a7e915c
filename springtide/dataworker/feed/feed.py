"""Yield a trainer's batches in order, each once, made by data workers or locally.

In: the wanted batches in order, and a function that makes a batch locally. Requests run ahead of the loop by at most
`room` batches and `most_bytes`. While no data worker is connected, the trainer makes batches itself.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed import batch_rng, dispatch
from springtide.dataworker.feed.connections import StepAnswer, WantedBatch, WorkerConnections
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import BatchName, FeedState

POLL_S = 0.05  # seconds between two checks for late steps, while the loop waits for a batch

Own = Callable[[NDArray[np.int64]], Any]


class BatchFeed:
    """Source of batches in the wanted order. Any thread may attach data workers at any time; the loop's thread calls
    `read`."""

    def __init__(
        self,
        secret: bytes,
        *,
        room: int = 8,
        most_bytes: int = 1 << 30,
        seed: int = 0,
        types: Mapping[str, type] | None = None,
        certificates: str = "",
        asks: Callable[[BatchName | None], tuple[int, ...]] = lambda name: (),
        draws: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a feed without data workers.

        certificates: a folder (`rpc.transport.tls`), if the job uses TLS. asks: numbers of leaves to request with each
        batch. The first stage gets these numbers as `run.keeping(indices, asks)`. draws: whether making a batch draws
        random numbers. If False, the feed does not touch the global generators, because the loop may draw from them in
        another thread.
        """
        if room < 1 or most_bytes < 1:
            raise errors.BadInput(f"a queue of {room} batches and {most_bytes} bytes: expected 1 or more of each")
        self._asks, self._draws = asks, draws
        self._pool = WorkerConnections(secret, types=types or {}, certificates=certificates)
        self._room, self._most_bytes, self._seed = room, most_bytes, seed
        self._taken, self._read_s, self._waited_s = 0, 0.0, 0.0
        self._refused = False
        # also runs at interpreter exit, early enough for the threads to end in order
        self._closing = weakref.finalize(self, self._pool.close)

    def attach(self, worker: str, address: str) -> None:
        """Add this data worker to the feed as soon as it is reachable. After a lost connection the feed reconnects."""
        self._pool.attach(worker, address)

    def detach(self, worker: str) -> None:
        """Send no more requests to this data worker, but fetch its pending batches."""
        self._pool.detach(worker)

    def refuse(self) -> None:
        """Stop using batches from data workers, including batches that are already finished. The trainer makes all
        further batches itself."""
        self._refused = True

    def close(self) -> None:
        self._closing()

    @property
    def room(self) -> int:
        return dispatch.fitting_room(
            self._room, workers=self._pool.workers, most_bytes=self._most_bytes, batch_bytes=self._pool.batch_bytes
        )

    @property
    def state(self) -> FeedState:
        """Statistics of this feed. Callers add the times of the loop and of forward()."""
        workers = self._pool.workers
        return FeedState(
            made=self._pool.made,
            taken=self._taken,
            queued=self._pool.queued,
            room=self.room if workers else 0,
            workers=workers,
            read_s=self._read_s,
            waited_s=self._waited_s,
        )

    def read(
        self,
        wanted: Iterable[WantedBatch],
        own: Own,
        *,
        fed: Callable[[], bool] = lambda: True,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """Yield batches in the wanted order, and None for a request without indices.

        An `UnreadableBatch` replaces a batch that raised on data workers. While no data worker is attached, or `fed()`
        is False, `own` makes batches in this thread. `own` gets the same random numbers as a data worker would, and
        raises errors in this thread.

        timeout_s: raise TimeoutError after waiting this long for a batch. A request without indices is a barrier: the
        feed sends later requests only after it has yielded the barrier. If the loop ends early, pending batches are
        dropped.
        """
        source = iter(wanted)
        window: deque[tuple[int | None, WantedBatch]] = deque()
        ended = False
        try:
            while True:
                while not ended and self._may_want_more(window, fed):
                    request = next(source, None)
                    if request is None:
                        ended = True
                    else:
                        asked = len(request.indices) > 0 and self._pool.workers > 0 and fed()
                        window.append(
                            (self._pool.request(request, self._asks(request.name)) if asked else None, request)
                        )
                if not window:
                    return
                step, request = window[0]
                made = self._next(step, request, own, timeout_s)
                window.popleft()
                yield made
                # drop the reference, so that the memory of a batch is freed as soon as the loop has dropped it
                del made
        finally:
            self._pool.forget(*(step for step, _ in window if step is not None))

    def ask_again(self, indices: NDArray[np.int64], name: BatchName | None, leaves: tuple[int, ...]) -> Any:
        """Let a data worker make a batch again, with these leaves; return None if no data worker can make the batch."""
        if not self._pool.workers:
            return None
        step = self._pool.request(WantedBatch(indices, name), leaves)
        try:
            return self._wait(step, None).tree
        finally:
            self._pool.forget(step)

    def _may_want_more(self, window: deque[tuple[int | None, WantedBatch]], fed: Callable[[], bool]) -> bool:
        if not window:
            return True
        last = window[-1][1]
        return len(last.indices) > 0 and self._pool.under_way < self.room and self._pool.workers > 0 and fed()

    def _next(self, step: int | None, request: WantedBatch, own: Own, timeout_s: float | None) -> Any:
        if not len(request.indices):
            return None
        answer = StepAnswer() if step is None or self._refused else self._wait(step, timeout_s)
        if step is not None:
            self._pool.forget(step)
        self._taken += 1
        if answer.made:
            return answer.tree
        return UnreadableBatch(answer.error) if answer.error else self._make(request, own)

    def _wait(self, step: int, timeout_s: float | None) -> StepAnswer:
        """Wait for the result of a step; return an empty answer if no data worker can make the step's batch."""
        answer = self._pool.wait(step)
        began = time.monotonic()
        while answer is None and not self._pool.alone and not self._pool.overdue(step):
            waited = time.monotonic() - began
            if timeout_s is not None and waited >= timeout_s:
                raise TimeoutError(f"no batch came from data workers within {timeout_s:g} s")
            answer = self._pool.wait(step, POLL_S if timeout_s is None else min(POLL_S, timeout_s - waited))
        self._waited_s += time.monotonic() - began
        return answer or StepAnswer()

    def _make(self, request: WantedBatch, own: Own) -> Any:
        began = time.monotonic()
        with batch_rng.seeded(self._seed, request.name if self._draws() else None):
            made = own(request.indices)
        self._pool.types.update(codec.types_in(made))
        self._read_s += time.monotonic() - began
        return made
