"""A Kafka topic as a `Stream`: number of partitions, first and last offsets. Thread-safe.

In: a URL (address.py). Out: readers (reader.py) and producers (writer.py). Queries wait for a broker that does not
answer. Meanwhile the last known number of partitions is used.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
except ImportError as error:  # pragma: no cover
    from springtide import errors

    raise errors.MissingExtra("a kafka:// stream", "kafka") from error

from springtide import errors
from springtide.data.stream.kafka import address as addresses
from springtide.data.stream.kafka import client
from springtide.data.stream.kafka.client import SAID_S
from springtide.data.stream.kafka.reader import KafkaReader
from springtide.data.stream.kafka.writer import KafkaWriter
from springtide.domain.data.streams import MOST_PARTITIONS, PartitionRange

log = logging.getLogger(__name__)

ANSWER_S = 30.0  # limit of a query, including a restart of the broker
ONCE_S = 5.0  # limit of a single try of a query
# a topic may be missing this long, because a broker that has just started answers before it knows its topics
MISSING_S = 10.0
ID_S = 3.0  # limit of the query for the topic's id; without an id, a recreated topic is noticed only if it is shorter
FRESH_S = 1.0  # validity of a partition count
EARLIEST, LATEST = -2, -1  # as times: Kafka's codes for the begin and the end of a partition
Answer = TypeVar("Answer")


def open_url(url: str) -> "KafkaStream":
    return KafkaStream(addresses.parse(url))


class KafkaStream:
    """A `Stream` over a topic."""

    def __init__(self, address: addresses.Address, *, answer_s: float = ANSWER_S) -> None:
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
        self.partitions()  # waits for a restarting broker, and raises its refusals
        return client.topic_id(self.address, self._note, ID_S)

    def partitions(self) -> int:
        with self._lock:
            if time.monotonic() - self._counted_at < FRESH_S:
                return self._partitions
            answer_s = ONCE_S if self._partitions else self._answer_s
            try:
                self._partitions = self._ask(self._count, answer_s)
            except errors.StreamUnreachable:
                if not self._partitions:
                    raise
            self._counted_at = time.monotonic()
            return self._partitions

    def bounds(self, start: str = "earliest") -> list[PartitionRange]:
        """Return the bounds of every partition: the job's start, and the current end. A topic has no final end."""
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

    def open(self) -> KafkaReader:
        return KafkaReader(self.address)

    def writer(self) -> KafkaWriter:
        return KafkaWriter(self.address)

    def close(self) -> None:
        with self._lock:
            asking, self._client = self._client, None
        if asking is not None:
            asking.close()

    def _since(self, start: str) -> int:
        try:
            millis = int(float(start) * 1000)
        except ValueError:
            raise errors.BadInput(
                f"a stream starts at 'earliest', 'latest' or a time in seconds since 1970, not {start!r}"
            ) from None
        if client.is_old(self.address):
            raise errors.BadInput(f"brokers before 0.10 keep no times: a stream of theirs cannot start at {start}")
        return millis

    def _offsets(self, partitions: range, since: int) -> list[int]:
        """Return the first offset since a time for each partition, with a query per broker; -1 if no record is that
        recent.
        """

        def question(asking: Consumer, most_s: float) -> list[int]:
            places = [TopicPartition(self.address.topic, partition, since) for partition in partitions]
            answers = {place.partition: place for place in asking.offsets_for_times(places, most_s)}
            for place in answers.values():
                if place.error is not None:
                    raise KafkaException(place.error)
            return [answers[partition].offset for partition in partitions]

        return self._ask(question)

    def _count(self, asking: Consumer, most_s: float) -> int:
        topic = asking.list_topics(self.address.topic, most_s).topics[self.address.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return len(topic.partitions)

    def _ask(self, question: Callable[[Consumer, float], Answer], answer_s: float | None = None) -> Answer:
        """Repeat a query until there is an answer. A user error raises immediately, a missing topic after
        `MISSING_S`.
        """
        began, limit_s = time.monotonic(), self._answer_s if answer_s is None else answer_s
        said, missing_since = limit_s <= SAID_S, float("inf")
        while True:
            try:
                answer = question(self._asking(), min(ONCE_S if said else SAID_S, limit_s))
            except KafkaException as error:
                code, text = _told(error)
            else:
                self._trouble = client.BrokerTrouble("no answer")
                return answer
            # reports why the broker is unavailable, such as a bad certificate; the query itself does not
            self._asking().poll(0)
            waited_s = time.monotonic() - began
            if code in client.REFUSED:
                raise client.refused(self.address, text)
            if self._trouble.refused and not self._partitions:  # otherwise the broker accepted us before, and may again
                raise client.refused(self.address, self._trouble.text)
            if code not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                missing_since = float("inf")
            else:  # from a broker that answers: earlier downtime does not count
                missing_since = min(missing_since, time.monotonic())
                self._trouble.note(code, f"it knows no topic {self.address.topic!r}")
            if not self._partitions and time.monotonic() - missing_since >= MISSING_S:
                raise errors.BadInput(
                    f"there is no topic {self.address.topic!r} at {self.address.servers}; make it first, with as many "
                    f"partitions as there will be workers or more (at most {MOST_PARTITIONS})"
                )
            if code == KafkaError.TOPIC_EXCEPTION:
                raise errors.BadInput(f"{self.address.topic!r} is no name for a Kafka topic: {text}")
            if waited_s > limit_s:
                raise client.unreachable(self.address, waited_s, f"{text}; {self._trouble.text}")
            if waited_s >= SAID_S and not said:
                said = True
                where, why = self.address.servers, self._trouble.text
                log.warning("waiting for the Kafka broker at %s, up to %.0f s: %s", where, limit_s, why)
            time.sleep(min(0.1, limit_s))

    def _asking(self) -> Consumer:
        if self._client is None:
            self._client = client.consumer(self.address, self._note)
        return self._client

    def _note(self, error: KafkaError) -> None:
        self._trouble.note(error.code(), error.str())


def _told(error: KafkaException) -> tuple[int, str]:
    reason = error.args[0]
    return (reason.code(), reason.str()) if isinstance(reason, KafkaError) else (KafkaError._FAIL, str(reason))
