"""A trainer's batches, made by data workers and yielded in order, each once.

In: batches that a trainer wants, in order, and a function that makes one locally. Out: the batches in the same order.
Requests run ahead of the loop by at most `room` batches and `most_bytes`. Without data workers the trainer makes
batches itself, and returns to data workers when some come. Next: the training loop.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed import batch_rng, dispatch
from springtide.dataworker.feed.connections import StepAnswer, WantedBatch, WorkerConnections
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import BatchName, FeedState

__all__ = ["BatchFeed", "Own", "WantedBatch"]

LOOK_S = 0.05  # while a loop waits for a batch: how often it is seen who could take it over

Own = Callable[[NDArray[np.int64]], Any]


@dataclass(slots=True)
class _Totals:
    taken: int = 0
    read_s: float = 0.0
    waited_s: float = 0.0


class BatchFeed:
    """Attach data workers at any time, from any thread; `read` in the loop's own. Close it, or drop it."""

    def __init__(
        self,
        secret: bytes,
        *,
        room: int = 8,
        most_bytes: int = 1 << 30,
        seed: int = 0,
        types: Mapping[str, type] | None = None,
        certificates: str = "",
    ) -> None:
        """`certificates`: a folder (`rpc.transport.tls`), where the job has TLS."""
        if room < 1 or most_bytes < 1:
            raise errors.BadInput(f"a queue of {room} batches and {most_bytes} bytes: wanted 1 or more of each")
        self.asks: Callable[[BatchName | None], tuple[int, ...]] = lambda name: ()
        """Numbers that go with a request, for `run.keeping(indices, asks)` of the first stage where it has that."""
        self.draws: Callable[[], bool] = lambda: True
        """Whether making a batch draws random numbers. If not, global ones are left alone: the loop, in another thread,
        may draw from them meanwhile."""
        self._pool = WorkerConnections(secret, types=types or {}, certificates=certificates)
        self._room, self._most_bytes, self._seed = room, most_bytes, seed
        self._totals = _Totals()
        self._refused = False
        self._closing = weakref.finalize(self, self._pool.close)  # at exit too, while threads can still end in order

    def attach(self, worker: str, address: str) -> None:
        """Be fed by this data worker too, from when it can be reached; it is called again when it was lost."""
        self._pool.attach(worker, address)

    def detach(self, worker: str) -> None:
        """Ask it for nothing more; what it has been asked for is fetched."""
        self._pool.detach(worker)

    def refuse(self) -> None:
        """Take nothing more of what data workers make or have made: whatever is still wanted is made here."""
        self._refused = True

    def close(self) -> None:
        """Hang up on all data workers. Nothing is left of it."""
        self._closing()

    @property
    def types(self) -> Mapping[str, type]:
        """Named types of batches, by name: those of batches that were made here are added."""
        return self._pool.types

    @types.setter
    def types(self, known: Mapping[str, type]) -> None:
        self._pool.types = dict(known)

    @property
    def room(self) -> int:
        """How many batches are wanted ahead at most, now."""
        return dispatch.fitting_room(
            self._room, workers=self._pool.workers, most_bytes=self._most_bytes, batch_bytes=self._pool.batch_bytes
        )

    @property
    def state(self) -> FeedState:
        """How this trainer is fed. Time of the loop and of forward() are for others to add."""
        workers = self._pool.workers
        return FeedState(
            made=self._pool.made,
            taken=self._totals.taken,
            queued=self._pool.queued,
            room=self.room if workers else 0,
            workers=workers,
            read_s=self._totals.read_s,
            waited_s=self._totals.waited_s,
        )

    def read(
        self,
        wanted: Iterable[WantedBatch],
        own: Own,
        *,
        fed: Callable[[], bool] = lambda: True,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """Batches in the order in which they are wanted; None for one without indices, which keeps its place.

        `Unreadable` stands in place of a batch that raised at data workers. While nobody is attached, or `fed()` is
        False, batches are made by `own`, in this thread and with the random numbers that a data worker would have
        had; what that raises is raised here. With `timeout_s` the wait for one batch may end in TimeoutError. Beyond
        one without indices nothing is wanted before that is yielded. What is under way when the loop is left early is
        forgotten.
        """
        source = iter(wanted)
        window: deque[tuple[int | None, WantedBatch]] = deque()
        ended = False
        try:
            while True:
                while not ended and self._may_want_more(window, fed):
                    one = next(source, None)
                    if one is None:
                        ended = True
                    else:
                        asked = len(one.indices) > 0 and self._pool.workers > 0 and fed()
                        window.append((self._pool.want(one, self.asks(one.name)) if asked else None, one))
                if not window:
                    return
                step, one = window[0]
                made = self._next(step, one, own, timeout_s)
                window.popleft()
                yield made
                del made  # a batch that the loop has dropped must not be kept here
        finally:
            self._pool.take(*(step for step, _ in window if step is not None))

    def _may_want_more(self, window: deque[tuple[int | None, WantedBatch]], fed: Callable[[], bool]) -> bool:
        if not window:
            return True
        last = window[-1][1]
        return len(last.indices) > 0 and self._pool.space(self.room) > 0 and self._pool.workers > 0 and fed()

    def _next(self, step: int | None, one: WantedBatch, own: Own, timeout_s: float | None) -> Any:
        if not len(one.indices):
            return None
        answer = StepAnswer() if step is None or self._refused else self._wait(step, timeout_s)
        if step is not None:
            self._pool.take(step)
        self._totals.taken += 1
        if answer.made:
            return answer.tree
        return UnreadableBatch(answer.error) if answer.error else self._make(one, own)

    def _wait(self, step: int, timeout_s: float | None) -> StepAnswer:
        """What became of it; an empty answer where nobody can be waited for."""
        answer = self._pool.settled(step)
        began = time.monotonic()
        while answer is None and not self._pool.alone and not self._pool.overdue(step):
            waited = time.monotonic() - began
            if timeout_s is not None and waited >= timeout_s:
                raise TimeoutError(f"no batch came from data workers within {timeout_s:g} s")
            answer = self._pool.wait(step, LOOK_S if timeout_s is None else min(LOOK_S, timeout_s - waited))
        self._totals.waited_s += time.monotonic() - began
        return answer or StepAnswer()

    def _make(self, one: WantedBatch, own: Own) -> Any:
        began = time.monotonic()
        with batch_rng.seeded(self._seed, one.name if self.draws() else None):
            made = own(one.indices)
        self._pool.types.update(codec.types_in(made))
        self._totals.read_s += time.monotonic() - began
        return made
