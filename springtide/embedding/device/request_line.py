"""A thread that sends requests in order, some of which wait for the GPU first, and a thread that finds unique rows.

In: pushes whose gradients are still on the GPU (`LatePart`), and the requests after them. Out: the requests, in the
order in which the training thread made them, so that a pull sees what it would see without a GPU. The training thread
never waits for the GPU, and issues its work while the rows of the next batch are found. Next:
embedding/lookup/table_client.py.
"""

import abc
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from springtide import _native


class LatePart(abc.ABC):
    """Part of a push whose gradients are on the GPU."""

    @abc.abstractmethod
    def begin_copy(self) -> None:
        """Start to copy the gradients to CPU memory. The training thread calls this method before the push."""

    @abc.abstractmethod
    def finish_copy(self) -> _native.StepRows | _native.DenseRows:
        """Wait for the copy, and check the gradients."""


class LatePush:
    """A push that has been sent, or waits for the GPU."""

    def __init__(self, sent: "Future[_native.Pending]") -> None:
        self._sent = sent

    def wait(self) -> None:
        self._sent.result().wait()


class RequestLine:
    """Requests of one client. The threads exist only after the first request."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._finder: ThreadPoolExecutor | None = None
        self._last: Future[_native.Pending] | Future[None] | None = None

    def submit_push(self, send: Callable[[], _native.Pending]) -> LatePush:
        sent = self._started().submit(send)
        self._last = sent
        return LatePush(sent)

    def submit(self, send: Callable[[], None]) -> "Future[None]":
        sent = self._started().submit(send)
        self._last = sent
        return sent

    def find(self, unique_rows: "Callable[[], _native.StepRows]") -> "Future[_native.StepRows]":
        """Find the unique rows of a batch in a thread that does not wait for requests."""
        if self._finder is None:
            self._finder = _thread_of(self, "springtide-unique-rows")
        return self._finder.submit(unique_rows)

    @property
    def busy(self) -> bool:
        if self._last is not None and self._last.done():
            self._last = None  # an error in it would keep the job alive
        return self._last is not None

    def settle(self) -> None:
        """Wait until all requests have been sent. Who made a request gets its error."""
        if self._last is not None:
            self._last.exception()
            self._last = None

    def _started(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = _thread_of(self, "springtide-requests")
        return self._thread


def _thread_of(line: RequestLine, name: str) -> ThreadPoolExecutor:
    """Start a thread that ends when the line is dropped."""
    thread = ThreadPoolExecutor(1, name)
    weakref.finalize(line, thread.shutdown, wait=False)
    return thread
