"""Request partitions and batch cuts of a stream from the master, in threads of their own.

In: the stream's bounds, and cuts that stream_reader.py wants. Out: leases and noted cuts, which the link puts into
worker/link/lease_tracker.py, and whether the pass is over. The master holds a request until it has a lease, so one
request is always open. A lost worker's partitions therefore move to other workers at once. If the master is away, these
threads wait while reading and training continue.
"""

import logging
import threading
import time
from collections.abc import Callable

from springtide import errors
from springtide.data.stream.stream import Stream
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.rpc.messages import messages
from springtide.worker.link.master_link import MasterLink

log = logging.getLogger(__name__)
EVERY_S = 2.0  # interval of partition discovery while this worker holds leases
SOON_S = 0.05  # interval between two requests; the master holds a request that it cannot answer


class StreamLeases:
    """Leases of a stream, one object per pass. `failure` is the error that ended a thread; the loop raises it."""

    def __init__(self, to_master: MasterLink, card: DatasetCard, stream: Stream, *, every_s: float = EVERY_S) -> None:
        assert card.stream is not None
        self._link, self._card, self._stream, self._every_s = to_master, card, stream, every_s
        self._start, self._now = card.stream.start, card.stream.until == "now"
        self._ended = threading.Event()
        self._wake = threading.Event()
        self.over = False
        """Whether the master has no lease left. The pass ends once this worker's own leases are trained."""
        self.failure: BaseException | None = None
        self._trouble = ""
        self._cutting: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="springtide-partitions", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        self._wake.set()

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        """Request these cuts, unless an earlier request is still unanswered."""
        if self._ended.is_set() or (self._cutting is not None and self._cutting.is_alive()):
            return
        self._cutting = threading.Thread(  # a daemon, because the master may be away when the script ends
            target=self._carefully, args=(lambda: self._link.leases.cut(cuts),), name="springtide-cuts", daemon=True
        )
        self._cutting.start()

    def close(self) -> None:
        """Stop requesting leases. A request in flight ends by itself, and its leases return."""
        self._ended.set()
        self._wake.set()

    def _run(self) -> None:
        self._carefully(self._ask_on)

    def _ask_on(self) -> None:
        tracker = self._link.leases.tracker
        seen: tuple[PartitionRange, ...] = ()
        look_at = time.monotonic()
        while not self._ended.is_set():
            busy = tracker.is_busy
            if not busy or not seen or self._wake.is_set() or time.monotonic() >= look_at:
                self._wake.clear()
                seen, look_at = self._seen(), time.monotonic() + self._every_s
            answer = self._link.leases.lease(self._card, max(1, len(seen)), seen)
            for one in () if self._now else seen:
                if one.final:
                    tracker.end_run(one.partition, one.end)
            self.over = isinstance(answer, messages.DataEnd) and not busy
            if not isinstance(answer, messages.LeaseReply):  # after a lease, ask for more at once
                self._wake.wait(SOON_S)

    def _seen(self) -> tuple[PartitionRange, ...]:
        try:
            seen = self._stream.bounds(self._start)
        except errors.TemporaryError as error:
            self._say(str(error))
            return ()
        self._say("")
        return tuple(one._replace(final=True) for one in seen) if self._now else tuple(seen)

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble or "the stream is there again")

    def _carefully(self, do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as error:  # the loop must raise any error
            if not self._ended.is_set():
                self.failure = error
