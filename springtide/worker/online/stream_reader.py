"""Threads that lease partitions of a stream, read them, claim complete batches and queue them for the loop.

In: the bounds of the stream, and chunks of records. Out: leases and recorded cuts in worker/link/lease_tracker.py,
and batches in the shuffle unit. One lease request is always open, so that a lost worker's partitions move without
delay. While no master answers, reading and training continue. If the queue is full, reading waits.
"""

import abc
import logging
import threading
import time
from collections.abc import Callable

from springtide import errors
from springtide.data.stream.stream import Stream, StreamReader
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.rpc.messages import messages
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.link.master_link import MasterLink
from springtide.worker.online.batch_claims import PartitionHeads, ReadyBatch
from springtide.worker.online.shuffle_unit import RecordRun, ShuffleUnit
from springtide.worker.online.usage_report import StreamMeter

log = logging.getLogger(__name__)
POLL_S = 0.05  # longest time in seconds until the reader reacts to a new or revoked lease
MOST_BATCHES = 8  # most batches to read in one poll
NAP_S = 0.01  # seconds to pause after a poll that returned less than one batch
EVERY_S = 2.0  # seconds between two searches for new partitions, while this worker holds leases
SOON_S = 0.05  # seconds between two requests; the master itself holds a request that it cannot answer yet


class StreamThread(abc.ABC):
    """Daemon thread of a pass. `failure` is the error that ended the thread, which the loop raises."""

    def __init__(self, name: str) -> None:
        self.failure: BaseException | None = None
        self._ended = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._carefully, args=(self._work,), name=name, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    @abc.abstractmethod
    def _work(self) -> None:
        """Do the work of the thread until the pass ends."""

    def _carefully(self, do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as error:  # pass any error on, because the loop must raise it
            if not self._ended.is_set():
                self.failure = error

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble or "the stream can be read again")


class StreamLeases(StreamThread):
    """Leases of a stream. Each pass has one object of this class."""

    def __init__(self, to_master: MasterLink, card: DatasetCard, stream: Stream, *, every_s: float = EVERY_S) -> None:
        assert card.stream is not None
        super().__init__("springtide-partitions")
        self._link, self._card, self._stream, self._every_s = to_master, card, stream, every_s
        self._start, self._now = card.stream.start, card.stream.until == "now"
        self._wake = threading.Event()
        self.over = False
        """Whether the master has no lease left. The pass ends once this worker's own leases are trained."""
        self._cutting: threading.Thread | None = None

    def hurry(self) -> None:
        self._wake.set()

    def cut(self, cuts: tuple[BatchCut, ...]) -> None:
        if self._ended.is_set() or (self._cutting is not None and self._cutting.is_alive()):
            return
        # a daemon thread, because the script must be able to end even if no master answers
        self._cutting = threading.Thread(
            target=self._carefully, args=(lambda: self._link.leases.cut(cuts),), name="springtide-cuts", daemon=True
        )
        self._cutting.start()

    def close(self) -> None:
        """Stop requesting leases. A request in flight ends without this call, and its leases are returned."""
        self._ended.set()
        self._wake.set()

    def _work(self) -> None:
        tracker = self._link.leases.tracker
        seen: tuple[PartitionRange, ...] = ()
        look_at = time.monotonic()
        while not self._ended.is_set():
            busy = tracker.is_busy
            if not busy or not seen or self._wake.is_set() or time.monotonic() >= look_at:
                self._wake.clear()
                seen, look_at = self._read_bounds(), time.monotonic() + self._every_s
            answer = self._link.leases.lease(self._card, max(1, len(seen)), seen)
            for partition in () if self._now else seen:
                if partition.final:
                    tracker.end_run(partition.partition, partition.end)
            self.over = isinstance(answer, messages.DataEnd) and not busy
            # after an answer with a lease, ask for more immediately; after any other answer, wait
            if not isinstance(answer, messages.LeaseReply):
                self._wake.wait(SOON_S)

    def _read_bounds(self) -> tuple[PartitionRange, ...]:
        try:
            seen = self._stream.bounds(self._start)
        except errors.TemporaryError as error:
            self._warn(str(error))
            return ()
        self._warn("")
        return tuple(partition._replace(final=True) for partition in seen) if self._now else tuple(seen)


class StreamBatchReader(StreamThread):
    """Reader of a stream. Each pass has one reader."""

    def __init__(
        self,
        stream: Stream,
        tracker: LeaseTracker,
        unit: ShuffleUnit,
        asking: StreamLeases,
        use: StreamMeter,
        *,
        batch_size: int,
        linger_s: float,
    ) -> None:
        super().__init__("springtide-stream")
        self._stream, self._tracker, self._unit, self._asking, self._use = stream, tracker, unit, asking, use
        self._most, self._few, self._linger_s = MOST_BATCHES * batch_size, batch_size, linger_s
        self._heads = PartitionHeads(batch_size)
        self._stands: dict[int, int] = {}
        """Reader's offset in each partition."""

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        reader = self._stream.open()
        try:
            while not self._ended.is_set():
                self._round(reader)
        finally:
            reader.close()

    def _round(self, reader: StreamReader) -> None:
        heads = self._heads
        heads.follow(self._tracker.tails())
        positions = heads.positions()
        if positions != self._stands:
            reader.assign(positions)
            self._stands = dict(positions)
        if not positions:
            self._use.record_position({}, {})
            self._ended.wait(POLL_S)
        else:
            self._poll(reader)
        for whole in heads.whole():
            if not self._offer(whole):
                return
        ends = dict(reader.ends())
        # do not cut a batch while the queue is full, because the batch may fill up while it waits
        if cuts := heads.lingering(ends, time.monotonic() - max(self._linger_s, self._unit.wait_s)):
            self._asking.cut(cuts)
        self._use.record_position(heads.oldest(), ends)

    def _poll(self, reader: StreamReader) -> None:
        try:
            chunks = reader.poll(min(POLL_S, max(self._linger_s, 0.001)), self._most)
        except errors.TemporaryError as error:
            self._warn(str(error))
            return
        now = time.monotonic()
        for chunk in chunks:
            self._stands[chunk.partition] = chunk.next
            if expired := self._heads.take_in(chunk, now):
                log.warning(
                    "partition %d: %d records were deleted by the stream's retention before a worker read them",
                    chunk.partition,
                    expired,
                )
            self._use.read(chunk.records, expired)
        if chunks:
            self._warn("")
            if sum(len(chunk.records) for chunk in chunks) < self._few:
                self._ended.wait(NAP_S)  # pause, so that the next records of a slow stream are read together

    def _offer(self, whole: ReadyBatch) -> bool:
        """Wait for room in the queue, and then claim the batch, unless another worker has leased the partition
        meanwhile. Return False to stop reading.
        """
        while not self._unit.await_room(POLL_S):
            if self._ended.is_set():
                return False
        claim = self._tracker.claim_run(whole.tail, whole.end)
        if claim is None:
            self._heads.dropped(whole)
            return True
        self._heads.claimed(whole)
        if not len(whole.records):
            self._tracker.acknowledge([claim])
            return True
        self._use.claimed(claim, whole.records)
        self._unit.offer(RecordRun(claim, whole.tail.grant.nth, whole.records))
        return True
