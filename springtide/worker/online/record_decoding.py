"""Filter and decode a batch's raw records; count and dead-letter the records that cannot be trained.

In: runs of records that stream_batches.py takes for the loop. Out: a batch, or None if no record can be trained, and
the event time of the stream. The filter depends only on the records (data/stream/record_filter.py), so all workers
decide alike.
"""

import logging
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from springtide.data.stream import record_filter
from springtide.data.stream.decode import decoder_of
from springtide.data.stream.record_filter import DeadLetter, DeadLetters
from springtide.data.stream.records import Records
from springtide.data.stream.stream import StreamDataset
from springtide.worker.online.usage_report import StreamMeter

log = logging.getLogger(__name__)


class DecodedBatch(NamedTuple):
    """Batch of a group, decoded alike on every rank."""

    batch: Any
    records: Records
    """Records in the batch; empty if none can be trained."""


class RecordDecoder:
    """Decoder of raw records, for one thread at a time."""

    def __init__(self, dataset: StreamDataset, use: StreamMeter) -> None:
        self._rules = record_filter.FilterRules(
            max_record_bytes=dataset.max_record_bytes, max_lateness_s=dataset.max_lateness_s
        )
        self._decoder = decoder_of(dataset.decode or _bodies)
        self._letters = DeadLetters(dataset.dead_letters)
        self._use = use
        self._said: set[str] = set()
        self.event_s = 0
        """Event time in seconds up to which batches were decoded; never decreases."""

    def batch(self, partition: int, records: Records) -> record_filter.FilteredBatch:
        return self._made(partition, records, tell=True)

    def whole(self, partition: int, records: Records, *, tell: bool) -> DecodedBatch:
        """Decode a batch that all ranks of a bsp group read. Only the rank with `tell` reports records that cannot be
        trained.
        """
        made = self._made(partition, records, tell=tell)
        bad = np.array([letter.offset for letter in made.letters], dtype=np.int64)
        return DecodedBatch(made.batch, records[~np.isin(records.offsets, bad)] if made.letters else records)

    def again(self, partition: int, records: Records) -> Any:
        return record_filter.batch_of(partition, records, self._rules, self._decoder).batch

    def close(self) -> None:
        self._letters.close()

    def _made(self, partition: int, records: Records, *, tell: bool) -> record_filter.FilteredBatch:
        made = record_filter.batch_of(partition, records, self._rules, self._decoder)
        if made.letters and tell:
            self._put_aside(made.letters)
        if made.records:
            # the median and the append time guard row ages against wrong clocks and future records
            happened = np.minimum(made.event_at, records.appended_at.max())
            self.event_s = max(self.event_s, int(np.median(happened)))
        return made

    def _put_aside(self, letters: list[DeadLetter]) -> None:
        self._letters.add(letters)
        if self._letters.lost:
            if not self._use.unkept:
                log.warning("dead letters are only counted from here on, not kept: %s", self._letters.why)
            self._use.not_kept(self._letters.lost, self._letters.why)
        for why, count in Counter(letter.why for letter in letters).items():
            self._use.refused(why, count)
            if why not in self._said:
                self._said.add(why)
                first = next(letter for letter in letters if letter.why == why)
                log.warning(
                    "partition %d, offset %d: a record is %s (%s) and not trained; others like it are only counted",
                    first.partition,
                    first.offset,
                    why,
                    first.detail or f"{first.size} bytes",
                )


def _bodies(bodies: list[bytes]) -> list[bytes]:
    return bodies
