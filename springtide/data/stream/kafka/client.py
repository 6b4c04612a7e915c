"""Create Kafka clients with our settings, and convert their errors.

In: an `Address`. Out: a consumer without a group, or a producer that loses no record. An error for an unknown setting
shows its name, never its value. Next: stream.py, reader.py, writer.py.
"""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from springtide import errors
from springtide.data.stream.kafka.address import Address
from springtide.data.stream.kafka.librdkafka import unfit

log = logging.getLogger(__name__)

Tell = Callable[[KafkaError], None]
GROUP = "springtide"
SAID_S = 2.5  # a longer wait is logged
CONSUMING: dict[str, Any] = {
    "auto.offset.reset": "error",  # report deleted records, never skip them silently
    "enable.partition.eof": True,  # shows gaps at the end of a partition
    "fetch.message.max.bytes": 1 << 20,  # per partition: large enough to be fast, small enough to take turns
    "queued.max.messages.kbytes": 64 << 10,
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 10_000,  # leaders move, and partitions are added
    "socket.keepalive.enable": True,
    "log_level": 2,  # this package logs errors itself; `log_level=7&debug=broker` in the URL shows everything
}
PRODUCING: dict[str, Any] = {
    "delivery.report.only.error": True,
    "linger.ms": 5,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 200_000,
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    "log_level": 2,  # this package logs errors itself; `log_level=7&debug=broker` in the URL shows everything
}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
"""Errors that waiting does not solve: somebody must grant rights or correct a password."""


class BrokerTrouble:
    """The most informative reason so far for an unresponsive broker."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.code: int | None = None

    def note(self, code: int, text: str) -> None:
        """Store the reason, unless it only says that no broker is left, which follows from an earlier reason."""
        if self.code is None or code != KafkaError._ALL_BROKERS_DOWN:
            self.code, self.text = code, text

    @property
    def refused(self) -> bool:
        return self.code in REFUSED


def is_old(address: Address) -> bool:
    """Return True if the user's options declare a broker before 0.10, which has no timestamps or idempotent
    producers.
    """
    return address.options.get("api.version.request") == "false"


def consuming(address: Address) -> dict[str, Any]:
    """Return the settings of a consumer. With `group.id` in the URL, the consumer commits offsets for lag monitors."""
    commits = "group.id" in address.options
    return address.settings({**CONSUMING, "group.id": GROUP, "enable.auto.commit": commits})


def consumer(address: Address, tell: Tell) -> Consumer:
    """Create a consumer for queries; it reads no records."""
    made: Consumer = _made(Consumer, {**consuming(address), "enable.auto.commit": False}, tell)
    return made


def producer(address: Address, tell: Tell, failed: Callable[[KafkaError | None, object], None]) -> Producer:
    """Create a producer that keeps the order: idempotent if the broker supports it, else with a single request at a
    time.
    """
    careful = {"max.in.flight.requests.per.connection": 1} if is_old(address) else {"enable.idempotence": True}
    settings = address.settings({**PRODUCING, "acks": "all", **careful}) | {"on_delivery": failed}
    settings.pop("group.id", None)
    made: Producer = _made(Producer, settings, tell)
    return made


def topic_id(address: Address, tell: Tell, most_s: float) -> str:
    """Return the topic's id, which changes when the topic is recreated; empty if the broker gives none in time.

    Brokers have topic ids since 2.8.
    """
    if is_old(address):
        return ""
    settings = address.settings({**PRODUCING})
    settings.pop("group.id", None)
    asking: AdminClient = _made(AdminClient, settings, tell)
    answer = asking.describe_topics(TopicCollection([address.topic]), request_timeout=most_s)[address.topic]
    try:
        uuid = answer.result(most_s + 1.0).topic_id
    except (KafkaException, TimeoutError) as error:
        log.info("topic %r: no id: %s", address.topic, str(error))  # the error object would keep the client alive
        return ""
    bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits()) if uuid is not None else (0, 0)
    return str(uuid) if any(bits) else ""


def _made(kind: type[Any], settings: dict[str, Any], tell: Tell) -> Any:
    try:
        return kind({**settings, "error_cb": tell}, logger=log)
    except KafkaException as error:
        reason = error.args[0]
        text = reason.str() if isinstance(reason, KafkaError) else str(reason)
        raise unfit(text, settings) from None


def unreachable(address: Address, waited_s: float, why: str) -> errors.StreamUnreachable:
    return errors.StreamUnreachable(
        f"the Kafka broker at {address.servers} has not answered for {waited_s:.0f} s ({why}): is it up, is the "
        f"address right as seen from this host, does it want SASL or TLS (security.protocol)?"
    )


def refused(address: Address, why: str) -> errors.UserError:
    return errors.UserError(
        f"the Kafka broker at {address.servers} refuses topic {address.topic!r}: {why}; check the rights of the user "
        f"and its password (put them in a file: ?config=client.properties)"
    )
