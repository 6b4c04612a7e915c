"""Batches of a stream for the loop of an async worker, until the stream or the job ends.

In: the shuffle unit, which stream_reader.py fills. Out: decoded batches, and a pause while there is nothing to
train. Records that cannot be trained are counted and become dead letters. Every worker makes the same choice for a
record. After the push, `on_trained` notifies the meter and the shuffle unit.
"""

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from springtide.data.source import as_batch
from springtide.data.stream import record_filter
from springtide.data.stream.decode import decoder_of
from springtide.data.stream.record_filter import DeadLetter, DeadLetters
from springtide.data.stream.records import Records
from springtide.data.stream.stream import Stream, StreamDataset
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.domain.data.streams import StreamUse
from springtide.worker.input.batch_plan import PAUSE, PAUSED, RESTING, BatchOrder, ReadBatch
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.master_link import MasterLink
from springtide.worker.online.shuffle_unit import RecordRun, ShuffleUnit
from springtide.worker.online.stream_reader import StreamBatchReader, StreamLeases
from springtide.worker.online.usage_report import StreamMeter
from springtide.worker.step.step import StepListener

PATIENCE_S = 0.05  # seconds to wait for a batch before the loop checks for the end
# seconds to wait for batches that are at peers; after that, the partition's next worker trains these batches or skips
# them
DRAIN_S = 5.0
log = logging.getLogger(__name__)


class StreamFeed(StepListener):
    """Feed of a stream. Each `job.prepare` has one such feed; call `batches` once per pass."""

    def __init__(
        self,
        dataset: StreamDataset,
        stream: Stream,
        card: DatasetCard,
        to_master: MasterLink,
        unit: ShuffleUnit,
        *,
        idle: Callable[[], None] = lambda: None,
        parts: int = 1,
    ) -> None:
        """Create the feed. `idle` is called at each pause. The loop gets each batch in `parts` parts."""
        self._dataset, self._stream, self._card, self._link, self._unit = dataset, stream, card, to_master, unit
        self._idle = idle
        self._part_size = card.batch_size // parts
        self._use = StreamMeter()
        self._making = RecordDecoder(dataset, self._use)

    def batches(self) -> Iterator[ReadBatch]:
        """Yield batches until the stream is over for all workers, or the job drains."""
        tracker = self._link.leases.tracker
        tracker.begin_pass(self._card)
        asking = StreamLeases(self._link, self._card, self._stream)
        reading = StreamBatchReader(
            self._stream,
            tracker,
            self._unit,
            asking,
            self._use,
            batch_size=self._card.batch_size,
            linger_s=self._dataset.linger_s,
        )
        asking.begin()
        reading.begin()
        try:
            patience_s = PATIENCE_S
            while not self._link.draining:
                run = self._unit.take(patience_s)
                if run is not None:
                    # do not wait for a batch, because that would delay the push of the previous batch
                    patience_s = 0.0
                    yield from self._handed(run)
                else:
                    if failure := reading.failure or asking.failure:
                        raise failure
                    if asking.over and not tracker.is_busy and self._unit.idle:
                        return
                    if not tracker.is_busy:
                        asking.hurry()  # request more leases, or learn that the data has ended
                    patience_s = PATIENCE_S
                    self._use.waits(True)
                    self._idle()
                    yield PAUSED if asking.over or self._read_out() else RESTING
        finally:
            self._end(asking, reading)

    def on_trained(self, claims: Sequence[BatchClaim]) -> None:
        self._use.trained(claims)
        self._unit.trained(claims)

    def report(self) -> StreamUse:
        shuffled = self._unit.use
        return dataclasses.replace(
            self._use.report(self._link.leases.tracker.tails()), queue=shuffled.queue, forwarded=shuffled.forwarded
        )

    def on_torn(self, claims: Sequence[BatchClaim]) -> bool:
        """Drop batches that a server refused because it has only some of their records. Another worker now owns the
        records of such a batch, and has formed different batches from them. Return False if this worker still holds the
        lease, which is an error.
        """
        tracker = self._link.leases.tracker
        if any(tracker.holds(claim) for claim in claims):
            return False
        self._use.forget(claims)
        for claim in claims:
            tracker.note_void(claim, 0)
            self._unit.drop(RecordRun(claim, 0, Records.none()))
        return True

    def close(self) -> None:
        self._unit.close()
        self._making.close()
        self._stream.close()

    def row_clock(self) -> int:
        """Return the event time of the stream in seconds, up to the loop's batch. The job measures the age of rows by
        this time.
        """
        return self._making.event_s

    def _read_out(self) -> bool:
        """Return True if this worker has claimed all samples of its leases, so that the leases give no further
        batch.
        """
        tails = self._link.leases.tracker.tails()
        return bool(tails) and all(tail.begin >= tail.end for tail in tails)

    def _handed(self, run: RecordRun) -> list[ReadBatch]:
        self._use.waits(False, len(run.records))
        pieces = [run.records[at : at + self._part_size] for at in range(0, len(run.records), self._part_size)]
        made = [(piece, self._making.batch(run.partition, piece)) for piece in pieces]
        full = [(piece, ready.batch) for piece, ready in made if ready.batch is not None]
        count = sum(ready.records for _, ready in made)
        self._link.leases.tracker.note_void(run.claim, run.claim.end - run.claim.begin - count)
        if not full:  # no record can be trained; every reader gets the same result
            return [ReadBatch(order_of(run.claim, run.claim.begin, run.claim.end), None, empty=True)]
        self._use.handed(run.claim, run.records, count)
        begins = [run.claim.begin, *(int(piece.offsets[0]) for piece, _ in full[1:]), run.claim.end]
        return [
            ReadBatch(order_of(run.claim, begin, end), as_batch(batch) if isinstance(batch, tuple) else batch)
            for (begin, end), (_, batch) in zip(itertools.pairwise(begins), full, strict=True)
        ]

    def _end(self, asking: StreamLeases, reading: StreamBatchReader) -> None:
        asking.close()
        reading.close()
        self._unit.drain(DRAIN_S)
        self._use.waits(True)


def order_of(claim: BatchClaim, begin: int, end: int) -> BatchOrder:
    identity = SampleRange(epoch=0, shard=claim.shard, first=begin, count=end - begin)
    return BatchOrder(indices=PAUSE.indices, ranges=(identity,), claim=claim, last=end == claim.end)


class RecordDecoder:
    """Decoder of raw records, for one thread at a time."""

    def __init__(self, dataset: StreamDataset, use: StreamMeter) -> None:
        self._rules = record_filter.FilterRules(
            max_record_bytes=dataset.max_record_bytes, max_lateness_s=dataset.max_lateness_s
        )
        self._decoder = decoder_of(dataset.decode or (lambda bodies: bodies))
        self._letters = DeadLetters(dataset.dead_letters)
        self._use = use
        self._said: set[str] = set()
        self.event_s = 0
        """Event time in seconds up to which batches were decoded; never decreases."""

    def batch(self, partition: int, records: Records) -> record_filter.FilteredBatch:
        return self._made(partition, records, tell=True)

    def whole(self, partition: int, records: Records, *, tell: bool) -> tuple[Any, Records]:
        """Return a batch that all ranks read, with the records that can be trained. Only the rank with `tell` reports
        the untrainable records.
        """
        made = self._made(partition, records, tell=tell)
        bad = np.array([letter.offset for letter in made.letters], dtype=np.int64)
        return made.batch, records[~np.isin(records.offsets, bad)] if made.letters else records

    def again(self, partition: int, records: Records) -> Any:
        return record_filter.batch_of(partition, records, self._rules, self._decoder).batch

    def close(self) -> None:
        self._letters.close()

    def _made(self, partition: int, records: Records, *, tell: bool) -> record_filter.FilteredBatch:
        made = record_filter.batch_of(partition, records, self._rules, self._decoder)
        if made.letters and tell:
            self._put_aside(made.letters)
        if made.records:
            # take the median, and limit it by the append time, so that wrong clocks and records from the future do not
            # distort the ages of rows
            happened = np.minimum(made.event_at, records.appended_at.max())
            self.event_s = max(self.event_s, int(np.median(happened)))
        return made

    def _put_aside(self, letters: list[DeadLetter]) -> None:
        self._letters.add(letters)
        if self._letters.lost:
            if not self._use.unkept:
                log.warning("dead letters are only counted from now on, not stored: %s", self._letters.why)
            self._use.not_kept(self._letters.lost, self._letters.why)
        for why, count in Counter(letter.why for letter in letters).items():
            self._use.refused(why, count)
            if why not in self._said:
                self._said.add(why)
                first = next(letter for letter in letters if letter.why == why)
                log.warning(
                    "partition %d, offset %d: a record is %s (%s) and is not trained; more of them are only counted",
                    first.partition,
                    first.offset,
                    why,
                    first.detail or f"{first.size} bytes",
                )
