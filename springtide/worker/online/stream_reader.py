"""The thread that reads leased partitions, claims whole batches and queues them for the loop.

In: leases in worker/link/lease_tracker.py, and chunks of a stream. Out: runs in the shuffle unit
(worker/online/shuffling/), which keeps or forwards them. A full queue blocks this thread and therefore the reading.
Next: stream_batches.py takes the runs for the loop.
"""

import logging
import threading
import time
from collections.abc import Callable

from springtide import errors
from springtide.data.stream.stream import Stream, StreamReader
from springtide.worker.link.lease_tracker import LeaseTracker
from springtide.worker.online.batch_claims import PartitionHeads, ReadyBatch
from springtide.worker.online.shuffling import RecordRun, ShuffleUnit
from springtide.worker.online.stream_client import StreamLeases
from springtide.worker.online.usage_report import StreamMeter

log = logging.getLogger(__name__)
POLL_S = 0.05  # longest delay before the reader follows new or revoked leases
MOST_BATCHES = 8  # limit of one poll
NAP_S = 0.01  # pause after a poll with less than a batch


class StreamBatchReader:
    """Reader of a stream, one per pass. `failure` is the error that ended the thread; the loop raises it."""

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._tracker, self._unit, self._asking, self._use = stream, tracker, unit, asking, use
        self._most, self._few, self._linger_s, self._clock = MOST_BATCHES * batch_size, batch_size, linger_s, clock
        self._heads = PartitionHeads(batch_size)
        self._ended = threading.Event()
        self.failure: BaseException | None = None
        self._stands: dict[int, int] = {}
        """Reader's offset in each partition."""
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="springtide-stream", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading and wait for the thread, which checks often."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            reader = self._stream.open()
            try:
                while not self._ended.is_set():
                    self._round(reader)
            finally:
                reader.close()
        except BaseException as error:  # the loop must raise any error
            self.failure = error

    def _round(self, reader: StreamReader) -> None:
        heads = self._heads
        heads.follow(self._tracker.tails())
        positions = heads.positions()
        if positions != self._stands:
            reader.assign(positions)
            self._stands = dict(positions)
        if not positions:
            self._use.stands({}, {})
            self._ended.wait(POLL_S)
        else:
            self._poll(reader)
        for whole in heads.whole():
            if not self._offer(whole):
                return
        ends = dict(reader.ends())
        # do not cut a batch that would wait in the queue; it fills meanwhile and is trained no later
        if cuts := heads.lingering(ends, self._clock() - max(self._linger_s, self._unit.wait_s)):
            self._asking.cut(cuts)
        self._use.stands(heads.oldest(), ends)

    def _poll(self, reader: StreamReader) -> None:
        try:
            chunks = reader.poll(min(POLL_S, max(self._linger_s, 0.001)), self._most)
        except errors.TemporaryError as error:
            self._say(str(error))
            return
        now = self._clock()
        for chunk in chunks:
            self._stands[chunk.partition] = chunk.next
            if expired := self._heads.take_in(chunk, now):
                log.warning(
                    "partition %d: %d records were deleted by the stream's retention before anyone had read them",
                    chunk.partition,
                    expired,
                )
            self._use.read(chunk.records, expired)
        if chunks:
            self._say("")
            if sum(len(chunk.records) for chunk in chunks) < self._few:
                self._ended.wait(NAP_S)  # on a slow stream, read the next records together

    def _offer(self, whole: ReadyBatch) -> bool:
        """Wait for room, then claim the batch, because another worker may get the partition until then.

        Return False if the reader must stop.
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

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble or "the stream can be read again")
