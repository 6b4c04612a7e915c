"""Read partitions of a topic from given offsets, and track the exact position.

In: `assign({partition: offset})` by the worker. Out: chunks (stream.Chunk) that cover all offsets from the reader's
position to its next position. Chunks include gaps from compaction and transactions, and count records that retention
deleted as expired. While the broker is unavailable, there are no chunks. Next: worker/online/ makes batches.
librdkafka.py converts messages to records.
"""

import logging
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError

from springtide import errors
from springtide.data.stream.kafka import client
from springtide.data.stream.kafka.address import Address
from springtide.data.stream.kafka.librdkafka import BrokerQueryFailed, PartitionNotice, RawConsumer
from springtide.data.stream.records import Records
from springtide.data.stream.stream import Chunk

log = logging.getLogger(__name__)

AWAY_S = 60.0  # an unavailable broker raises an error after this long, and again after each further interval
LOOK_S = 5.0  # limit of a query to the broker
AGAIN_S = 0.5  # interval between two queries for a partition that is out of range
SHRUNK_S = 5.0  # a broker that has just started may not know its end offset yet
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class KafkaReader:
    """A `StreamReader` of a topic. For a single thread."""

    def __init__(self, address: Address, *, away_s: float = AWAY_S) -> None:
        self._address = address
        self._away_s = away_s
        self._away: tuple[float, str] | None = None
        self._next: dict[int, int] = {}
        """Position in each assigned partition."""
        self._astray: dict[int, float] = {}
        """Partitions whose offset the broker does not have, with the time of the next query."""
        self._shrunk: dict[int, float] = {}
        """Partitions among these that end before the reader's position, with the time of detection."""
        self._ends: dict[int, int] = {}
        self._handle: RawConsumer | None = RawConsumer(address.topic, client.consuming(address), self._note)

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from now on. Partitions at the right position continue undisturbed."""
        wrong = [partition for partition, offset in self._next.items() if positions.get(partition) != offset]
        if wrong:
            self._it.unassign(wrong)
            for partition in wrong:
                del self._next[partition]
                self._astray.pop(partition, None)
                self._shrunk.pop(partition, None)
                self._ends.pop(partition, None)
        new = {partition: offset for partition, offset in positions.items() if partition not in self._next}
        if new:
            self._it.assign(new)
            self._next |= new

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """Return the available records, at most about `most`. Events without records do not end the wait."""
        until = time.monotonic() + timeout_s
        while True:
            chunks = self._astray_ones()
            left_s = max(until - time.monotonic(), 0.0)
            wait_s = 0.0 if chunks else min(left_s, AGAIN_S) if self._astray else left_s
            chunks += self._read(wait_s, most)
            if chunks:
                self._away = None
                return chunks
            if self._away is not None:
                self._look()
            if time.monotonic() >= until:
                return chunks

    def ends(self) -> Mapping[int, int]:
        for partition in self._next:
            if (end := self._it.known_end(partition)) is not None:
                self._ends[partition] = end
        return {
            partition: max(end, self._next[partition])
            for partition, end in self._ends.items()
            if partition in self._next
        }

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @property
    def _it(self) -> RawConsumer:
        if self._handle is None:
            raise errors.BadInput("this reader is closed; open another one of the stream")
        return self._handle

    def _read(self, wait_s: float, most: int) -> list[Chunk]:
        """Advance by the available records. Drop records of reassigned partitions, and records before the position."""
        stood = dict(self._next)
        found, news = self._it.consume(most, wait_s)
        for partition, read in list(found.items()):
            at = self._next.get(partition)
            if at is None:
                continue
            if read.offsets[0] < at:
                read = found[partition] = read.between(at, int(read.offsets[-1]) + 1)
            if len(read):
                self._next[partition] = int(read.offsets[-1]) + 1
        for notice in news:
            self._hear(notice)
        return [
            Chunk(
                partition=partition,
                first=first,
                next=self._next[partition],
                records=found.get(partition, Records.none()),
            )
            for partition, first in stood.items()
            if self._next[partition] > first
        ]

    def _hear(self, news: PartitionNotice) -> None:
        """Handle an event in place of a record: the end of a partition, or an error."""
        partition, code, offset = news
        if code in client.REFUSED:
            raise client.refused(self._address, self._it.text(code))
        if partition not in self._next:
            if code != KafkaError.GROUP_AUTHORIZATION_FAILED:  # the group is only a name, unless the user wants commits
                self._note(code, self._it.text(code))
        elif code == KafkaError._PARTITION_EOF:
            self._next[partition] = max(self._next[partition], offset)
            self._ends[partition] = self._next[partition]
        elif code in OUT_OF_RANGE:
            self._astray.setdefault(partition, 0.0)
        else:
            self._note(code, self._it.text(code))

    def _astray_ones(self) -> list[Chunk]:
        """Move partitions whose offset is gone to the oldest existing record."""
        chunks = []
        for partition, when in list(self._astray.items()):
            if time.monotonic() < when:
                continue
            try:
                low, high = self._it.bounds(partition, LOOK_S)
            except BrokerQueryFailed as error:
                self._astray[partition] = time.monotonic() + AGAIN_S
                self._note(error.code, str(error))
                continue
            at = self._next[partition]
            if at > high:
                self._astray[partition] = time.monotonic() + AGAIN_S
                if time.monotonic() - self._shrunk.setdefault(partition, time.monotonic()) < SHRUNK_S:
                    continue
                raise errors.StreamShrunk(
                    f"partition {partition} of topic {self._address.topic!r} ends at {high}, but the job has read up "
                    f"to {at}: was the topic deleted and made again, or did a broker lose data? Begin a new job on it"
                )
            del self._astray[partition]
            self._shrunk.pop(partition, None)
            on = max(at, low)
            self._it.unassign([partition])
            self._it.assign({partition: on})
            if on > at:
                log.warning("partition %d: %d records were deleted before they were read", partition, on - at)
                self._next[partition] = on
                chunks.append(Chunk(partition=partition, first=at, next=on, records=Records.none(), expired=on - at))
        return chunks

    def _note(self, code: int, why: str) -> None:
        """Record a temporary error: its start, and the most informative reason."""
        if self._away is None:
            log.warning("reading topic %r: %s", self._address.topic, why)
            self._away = (time.monotonic(), why)
        elif code != KafkaError._ALL_BROKERS_DOWN:
            self._away = (self._away[0], why)

    def _look(self) -> None:
        """Query a broker that was unavailable for long. Raise TemporaryError if it still is."""
        assert self._away is not None
        since, why = self._away
        away_s = time.monotonic() - since
        if away_s < self._away_s or not self._next:
            return
        try:
            self._it.bounds(min(self._next), min(LOOK_S, self._away_s))
        except BrokerQueryFailed:
            self._away = (time.monotonic(), why)
            raise client.unreachable(self._address, away_s, why) from None
        self._away = None
