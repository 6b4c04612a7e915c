"""Read and prepare the next batch in a thread while the loop trains the current one.

In: a feed of batches, and a function that prepares a batch (worker/cache/sample_allocation.py). Out: the prepared
batches, each with a function that returns the next one. All ranks of a group see the same sequence, which leaves out
pauses. With `pauses`, new batches may come at any time: the loop then gets each pause, and no batch follows a batch
before a pause.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from springtide.worker.input.read_batch import PAUSED, ReadBatch


class BatchReadahead:
    """Iterable over the prepared batches; `close` ends the thread and the feed."""

    def __init__(
        self,
        feed: Iterator[ReadBatch],
        make_ready: Callable[[ReadBatch], ReadBatch],
        review: Callable[[ReadBatch], ReadBatch] = lambda handed: handed,
        timed: Callable[[float], None] = lambda seconds: None,
        *,
        pauses: bool = False,
    ) -> None:
        """Create the read-ahead. `make_ready` runs in its thread, `review` in the loop's thread after the previous
        batch. `timed` gets read times.
        """
        self._feed, self._make_ready, self._review, self._timed = feed, make_ready, review, timed
        self._pauses = pauses
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="springtide-ahead")
        self._next: Future[ReadBatch | None] | None = None
        self._closing = False

    def __iter__(self) -> Iterator[ReadBatch]:
        try:
            while (now := self._take()) is not None:
                if now.order.regroups is None and now is not PAUSED:
                    now = self._review(now)
                    coming = self._next = self._thread.submit(self._read)
                    now = replace(now, following=lambda coming=coming: _batch(coming.result()))  # type: ignore[misc]
                yield now
        finally:
            self.close()

    def close(self) -> None:
        """Wait for the thread, which checks for the end at every batch and pause."""
        self._closing = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        close = getattr(self._feed, "close", None)
        if close is not None:
            close()

    def _take(self) -> ReadBatch | None:
        if self._next is None:  # at the start, and only after a change of the group is complete
            self._next = self._thread.submit(self._read)
        coming, self._next = self._next, None
        return coming.result()

    def _read(self) -> ReadBatch | None:
        while not self._closing:
            began = time.perf_counter()
            handed = next(self._feed, None)
            self._timed(time.perf_counter() - began)
            if handed is PAUSED:
                if self._pauses:
                    return handed
            else:
                return handed if handed is None or handed.order.regroups is not None else self._make_ready(handed)
        return None


def _batch(handed: ReadBatch | None) -> ReadBatch | None:
    return None if handed is None or handed is PAUSED or handed.order.regroups is not None else handed
