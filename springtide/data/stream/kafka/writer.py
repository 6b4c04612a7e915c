"""Append records to a topic in order; a record counts as stored when the broker confirms it.

In: `append(partition, payload, ends)` from produce.py. Out: records at the broker when `flush` returns. The writer
waits for an unavailable broker. If the broker finally refuses records, the writer raises an error with their number.
Brokers since 0.11 store each record once. An older broker may store a record twice, if it is killed before it confirms.
"""

import logging
import time

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Producer

from springtide import errors
from springtide.data.stream.kafka import client
from springtide.data.stream.kafka.address import Address
from springtide.data.stream.records import Buffer, Ints

log = logging.getLogger(__name__)

AWAY_S = 60.0
LOOK_S = 0.1
NEW_S = 5.0  # a partition that was just added may stay unknown this long
WRONG = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.MSG_SIZE_TOO_LARGE} | client.REFUSED
"""Errors that a retry does not solve."""


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
            raise errors.BadInput("this writer is closed; make another one of the stream")
        return self._producer

    def _again(self, partition: int, body: bytes, error: BufferError | KafkaException) -> None:
        """Retry a record that was not accepted: wait for queue space, or until a new partition is known."""
        since, waiting, began = time.monotonic(), len(self._it), time.monotonic()
        while True:
            if isinstance(error, BufferError):
                self._it.poll(LOOK_S)
            elif _code(error) == KafkaError._UNKNOWN_PARTITION and time.monotonic() - began < NEW_S:
                self._look()
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
                raise client.unreachable(self._address, self._away_s, f"{waiting} wait; {self._trouble.text}") from None

    def _look(self) -> None:
        """Query the number of partitions; the client itself refreshes it only every few minutes."""
        try:
            self._it.list_topics(self._address.topic, NEW_S)
        except KafkaException as error:
            self._trouble.note(_code(error), str(error))
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


def _code(error: KafkaException) -> int:
    reason = error.args[0]
    return reason.code() if isinstance(reason, KafkaError) else KafkaError._FAIL
