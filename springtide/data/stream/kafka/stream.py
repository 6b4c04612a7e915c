"""A Kafka topic as a `Stream`: number of partitions, first and last offsets, readers and writers.

If the broker does not answer, queries wait, and the number of partitions is the last known one. A reader's chunks cover
all offsets from its position on, including gaps from compaction and transactions, and records that retention deleted
(expired). A record counts as appended when the broker confirms it.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from springtide import errors
from springtide.data.stream.kafka import client
from springtide.data.stream.kafka.client import SAID_S, Address, reason_of
from springtide.data.stream.kafka.librdkafka import BrokerQueryFailed, PartitionNotice, RawConsumer
from springtide.data.stream.records import Buffer, Ints, Records
from springtide.data.stream.stream import Chunk
from springtide.domain.data.streams import MOST_PARTITIONS, PartitionRange

log = logging.getLogger(__name__)

ANSWER_S = 30.0  # most seconds for a query; long enough for a restart of the broker
ONCE_S = 5.0  # most seconds for a single try of a query
# seconds for which a topic may be missing, because a newly started broker answers before it knows its topics
MISSING_S = 10.0
# most seconds to query the topic's id; without an id, Springtide notices a recreated topic only if it is shorter
ID_S = 3.0
FRESH_S = 1.0  # seconds for which a partition count stays valid
# seconds after which an unavailable broker raises an error; a reader raises the error again after each further interval
AWAY_S = 60.0
LOOK_S = 0.1
NEW_S = 5.0  # seconds for which the broker may not know a partition that was just added
WRONG = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.MSG_SIZE_TOO_LARGE} | client.REFUSED
"""Errors of an append that no retry can solve."""
AGAIN_S = 0.5  # seconds between two queries for a partition whose offset is out of range
# seconds to wait before an error about a shorter topic, because a broker that has just started may not know its end
# offset yet
SHRUNK_S = 5.0
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
EARLIEST, LATEST = -2, -1  # Kafka's special timestamps for the begin and the end of a partition
Answer = TypeVar("Answer")


def open_url(url: str) -> "KafkaStream":
    return KafkaStream(client.parse(url))


class KafkaStream:
    """A `Stream` over a topic."""

    def __init__(self, address: Address, *, answer_s: float = ANSWER_S) -> None:
        self.address = address
        self._answer_s = answer_s
        self._trouble = client.BrokerTrouble("no answer yet")
        self._lock = threading.Lock()
        self._client: Consumer | None = None
        self._partitions = 0
        self._counted_at = float("-inf")

    @property
    def url(self) -> str:
        return self.address.shown

    @functools.cached_property
    def id(self) -> str:
        self.partitions()  # fail now if the broker refuses this client; if the broker is restarting, wait
        return client.topic_id(self.address, self._note, ID_S)

    def partitions(self) -> int:
        with self._lock:
            if time.monotonic() - self._counted_at < FRESH_S:
                return self._partitions
            answer_s = ONCE_S if self._partitions else self._answer_s
            try:
                self._partitions = self._query(self._count, answer_s)
            except errors.StreamUnreachable:
                if not self._partitions:
                    raise
            self._counted_at = time.monotonic()
            return self._partitions

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Return the bounds of every partition: the offset where the job starts, and the current end. A topic has no
        final end."""
        partitions = range(self.partitions())
        lows = self._offsets(partitions, EARLIEST)
        highs = self._offsets(partitions, LATEST)
        if start == "earliest":
            firsts = lows
        elif start == "latest":
            firsts = highs
        else:
            firsts = self._offsets(partitions, self._since(start))
        return [
            PartitionRange(partition, high if first < 0 else max(first, low), high)
            for partition, first, low, high in zip(partitions, firsts, lows, highs, strict=True)
        ]

    def open(self) -> "KafkaReader":
        return KafkaReader(self.address)

    def writer(self) -> "KafkaWriter":
        return KafkaWriter(self.address)

    def close(self) -> None:
        with self._lock:
            asking, self._client = self._client, None
        if asking is not None:
            asking.close()

    def _since(self, start: str) -> int:
        if client.is_old(self.address):
            raise errors.BadInput(f"brokers before 0.10 store no times, so their streams cannot start at {start}")
        return int(float(start) * 1000)

    def _offsets(self, partitions: range, since: int) -> list[int]:
        """Return, for each partition, the offset of the first record since a given time; -1 if the partition has no
        such record.
        """

        def question(asking: Consumer, most_s: float) -> list[int]:
            places = [TopicPartition(self.address.topic, partition, since) for partition in partitions]
            answers = {place.partition: place for place in asking.offsets_for_times(places, most_s)}
            for place in answers.values():
                if place.error is not None:
                    raise KafkaException(place.error)
            return [answers[partition].offset for partition in partitions]

        return self._query(question)

    def _count(self, asking: Consumer, most_s: float) -> int:
        topic = asking.list_topics(self.address.topic, most_s).topics[self.address.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return len(topic.partitions)

    def _query(self, question: Callable[[Consumer, float], Answer], answer_s: float | None = None) -> Answer:
        """Repeat a query until the broker answers. A user error raises immediately, and a missing topic raises after
        `MISSING_S` seconds."""
        began, limit_s = time.monotonic(), self._answer_s if answer_s is None else answer_s
        reported, missing_since = limit_s <= SAID_S, float("inf")
        while True:
            try:
                answer = question(self._asking(), min(ONCE_S if reported else SAID_S, limit_s))
            except KafkaException as error:
                code, text = reason_of(error)
            else:
                self._trouble = client.BrokerTrouble("no answer")
                return answer
            # poll the client, which then reports why the broker is unavailable, such as a bad certificate; the query
            # itself reports no reason
            self._asking().poll(0)
            waited_s = time.monotonic() - began
            if code in client.REFUSED:
                raise client.refused(self.address, text)
            # a broker that accepted this client before may accept the client again, so keep trying
            if self._trouble.refused and not self._partitions:
                raise client.refused(self.address, self._trouble.text)
            if code not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                missing_since = float("inf")
            else:  # the broker answers now, so forget an earlier outage
                missing_since = min(missing_since, time.monotonic())
                self._trouble.note(code, f"the broker knows no topic {self.address.topic!r}")
            if not self._partitions and time.monotonic() - missing_since >= MISSING_S:
                raise errors.BadInput(
                    f"there is no topic {self.address.topic!r} at {self.address.servers}; create it first, with at "
                    f"least as many partitions as workers (at most {MOST_PARTITIONS})"
                )
            if code == KafkaError.TOPIC_EXCEPTION:
                raise errors.BadInput(f"{self.address.topic!r} is not a valid name for a Kafka topic: {text}")
            if waited_s > limit_s:
                raise client.unreachable(self.address, waited_s, f"{text}; {self._trouble.text}")
            if waited_s >= SAID_S and not reported:
                reported = True
                where, why = self.address.servers, self._trouble.text
                log.warning("waiting for the Kafka broker at %s, up to %.0f s: %s", where, limit_s, why)
            time.sleep(min(0.1, limit_s))

    def _asking(self) -> Consumer:
        if self._client is None:
            self._client = client.consumer(self.address, self._note)
        return self._client

    def _note(self, error: KafkaError) -> None:
        self._trouble.note(error.code(), error.str())


class KafkaWriter:
    """A `StreamWriter` of a topic. For a single thread."""

    def __init__(self, address: Address, *, away_s: float = AWAY_S) -> None:
        self._address = address
        self._away_s = away_s
        self._lost = 0
        self._why: KafkaError | None = None
        self._trouble = client.BrokerTrouble("no answer")
        self._producer: Producer | None = client.producer(address, self._note, self._failed)

    def append(self, partition: int, payload: Buffer, ends: Ints) -> None:
        """Queue the records; wait while too many are unconfirmed."""
        produce, topic, whole = self._it.produce, self._address.topic, np.frombuffer(payload, np.uint8).data
        begin = 0
        for end in ends.tolist():
            body = bytes(whole[begin:end])
            begin = end
            try:
                produce(topic, body, partition=partition)
            except (BufferError, KafkaException) as error:
                self._again(partition, body, error)
        self._it.poll(0.0)
        self._check()

    def flush(self) -> None:
        since, waiting, logged = time.monotonic(), len(self._it), False
        while left := self._it.flush(LOOK_S):
            waited_s = time.monotonic() - since
            if left != waiting:
                since, waiting, self._trouble = time.monotonic(), left, client.BrokerTrouble("no answer")
            elif self._trouble.refused and waited_s > client.SAID_S:
                raise client.refused(self._address, self._trouble.text)
            elif waited_s > self._away_s:
                raise client.unreachable(self._address, self._away_s, f"{left} records wait; {self._trouble.text}")
            elif waited_s > client.SAID_S and not logged:
                logged = True
                log.warning(
                    "%d records wait for the Kafka broker at %s, up to %.0f s: %s",
                    left,
                    self._address.servers,
                    self._away_s,
                    self._trouble.text,
                )
        self._check()

    def close(self) -> None:
        if self._producer is None:
            return
        try:
            self.flush()
        finally:
            producer, self._producer = self._producer, None
            producer.purge()
            producer.close()

    @property
    def _it(self) -> Producer:
        if self._producer is None:
            raise errors.BadInput("this writer is closed; create another writer of the stream")
        return self._producer

    def _again(self, partition: int, body: bytes, error: BufferError | KafkaException) -> None:
        """Retry a record that the client did not accept: wait until the queue has space, or until a new partition is
        known."""
        since, waiting, began = time.monotonic(), len(self._it), time.monotonic()
        while True:
            if isinstance(error, BufferError):
                self._it.poll(LOOK_S)
            elif reason_of(error)[0] == KafkaError._UNKNOWN_PARTITION and time.monotonic() - began < NEW_S:
                self._query_partitions()
            else:
                raise errors.BadInput(
                    f"topic {self._address.topic!r} takes no record for partition {partition}: {error.args[0]}"
                ) from None
            try:
                return self._it.produce(self._address.topic, body, partition=partition)
            except (BufferError, KafkaException) as again:
                error = again
            if len(self._it) != waiting:
                since, waiting = time.monotonic(), len(self._it)
            elif time.monotonic() - since > self._away_s:
                raise client.unreachable(
                    self._address, self._away_s, f"{waiting} records wait; {self._trouble.text}"
                ) from None

    def _query_partitions(self) -> None:
        """Query the number of partitions, which the client itself refreshes only every few minutes."""
        try:
            self._it.list_topics(self._address.topic, NEW_S)
        except KafkaException as error:
            self._trouble.note(*reason_of(error))
        self._it.poll(LOOK_S)

    def _failed(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._lost += 1
            self._why = error

    def _note(self, error: KafkaError) -> None:
        self._trouble.note(error.code(), error.str())

    def _check(self) -> None:
        if self._lost:
            assert self._why is not None
            lost, self._lost = self._lost, 0
            kind = errors.BadInput if self._why.code() in WRONG else errors.StreamUnreachable
            raise kind(
                f"{lost} records did not reach topic {self._address.topic!r} at {self._address.servers}: "
                f"{self._why.str()}"
            )


class KafkaReader:
    """A `StreamReader` of a topic. Not thread-safe."""

    def __init__(self, address: Address, *, away_s: float = AWAY_S) -> None:
        self._address = address
        self._away_s = away_s
        self._away: tuple[float, str] | None = None
        self._next: dict[int, int] = {}
        """Position in each assigned partition."""
        self._astray: dict[int, float] = {}
        """Partitions of which the broker lacks the next offset, with the time of the next query."""
        self._shrunk: dict[int, float] = {}
        """Such partitions that end before the reader's position, with the time of detection."""
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
        """Return the available records, at most about `most`. Events that bring no records do not end the wait."""
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
                self._query_broker()
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
            raise errors.BadInput("this reader is closed; open another reader of the stream")
        return self._handle

    def _read(self, wait_s: float, most: int) -> list[Chunk]:
        """Return the available records, and advance past them. Drop records of reassigned partitions, and records
        before the position."""
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
            self._on_notice(notice)
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

    def _on_notice(self, news: PartitionNotice) -> None:
        """Handle an event in place of a record: the end of a partition, or an error."""
        partition, code, offset = news
        if code in client.REFUSED:
            raise client.refused(self._address, self._it.text(code))
        if partition not in self._next:
            # ignore the error: the client needs no group, unless the user wants commits
            if code != KafkaError.GROUP_AUTHORIZATION_FAILED:
                self._note(code, self._it.text(code))
        elif code == KafkaError._PARTITION_EOF:
            self._next[partition] = max(self._next[partition], offset)
            self._ends[partition] = self._next[partition]
        elif code in OUT_OF_RANGE:
            self._astray.setdefault(partition, 0.0)
        else:
            self._note(code, self._it.text(code))

    def _astray_ones(self) -> list[Chunk]:
        """If the next offset of a partition no longer exists, continue with the oldest existing record."""
        chunks = []
        for partition, when in list(self._astray.items()):
            if time.monotonic() < when:
                continue
            try:
                low, high = self._it.bounds(partition, ONCE_S)
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
                    f"to {at}; the topic was deleted and recreated, or a broker lost data. Begin a new job on it"
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
        """Remember when a temporary error began, and the most informative reason for it."""
        if self._away is None:
            log.warning("reading topic %r: %s", self._address.topic, why)
            self._away = (time.monotonic(), why)
        elif code != KafkaError._ALL_BROKERS_DOWN:
            self._away = (self._away[0], why)

    def _query_broker(self) -> None:
        """Query a broker that was unavailable for a long time. If the broker still does not answer, raise
        TemporaryError."""
        assert self._away is not None
        since, why = self._away
        away_s = time.monotonic() - since
        if away_s < self._away_s or not self._next:
            return
        try:
            self._it.bounds(min(self._next), min(ONCE_S, self._away_s))
        except BrokerQueryFailed:
            self._away = (time.monotonic(), why)
            raise client.unreachable(self._address, away_s, why) from None
        self._away = None
