"""Parses kafka:// URLs, creates Kafka clients with Springtide's settings, and converts their errors.

In: the user's URL. Out: an `Address` (`Address.shown` is the URL without secrets), consumers without a group, and
producers that lose no record. Secrets belong in a file (`?config=client.properties`), which every process reads itself.
An error for an unknown setting shows its name, never its value.
"""

import logging
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from springtide import errors, file_input
from springtide.data.stream.kafka.librdkafka import unfit
from springtide.domain.core.redaction import redact

log = logging.getLogger(__name__)

PORT = 9092
OURS = {
    "enable.auto.commit": "the job itself tracks its position",
    "enable.auto.offset.store": "the job itself tracks its position",
    "auto.offset.reset": "use springtide.stream(start=...) instead",
    "enable.partition.eof": "Springtide always enables this option",
    "bootstrap.servers": "the hosts of the URL set this option",
}
"""Options that a user cannot set, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a topic. `options` has librdkafka's names, and may contain secrets, so the repr omits it."""

    servers: str
    topic: str
    shown: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def settings(self, usual: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a client: the defaults, overridden by the user's options."""
        return {"bootstrap.servers": self.servers, "client.id": "springtide", **usual, **self.options}


def parse(url: str) -> Address:
    """Parse a URL, and the file of options that it may name. BadInput names the wrong part, without showing a
    secret.
    """
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme != "kafka" or not hosts or not topic or "/" in topic:
        raise errors.BadInput(
            f"{redact(url)!r} is not the URL of a Kafka topic: write kafka://host:{PORT}[,host:{PORT}]/topic"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in [name for name, value in options.items() if not value]:
        raise errors.BadInput(
            f"the option {name!r} of {redact(url)!r} has no value; write {name}=VALUE, or leave it out"
        )
    if file := options.pop("config", None):
        options = {**read_options(pathlib.Path(file)), **options}
    if "@" in parts.netloc:
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        options |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    if "sasl.username" in options and not options.get("security.protocol", "").lower().startswith("sasl"):
        raise errors.BadInput(
            f"{redact(url)!r} has a user, but does not say how to authenticate: add security.protocol=SASL_SSL (or "
            "SASL_PLAINTEXT on a trusted network) and sasl.mechanism, such as SCRAM-SHA-512 or PLAIN"
        )
    for name in options.keys() & OURS.keys():
        raise errors.BadInput(f"{name!r} cannot be set for a stream: {OURS[name]}")
    return Address(servers=_servers(hosts, url), topic=topic, shown=redact(url), options=options)


def read_options(file: pathlib.Path) -> dict[str, str]:
    """Read options from a file in the format of Kafka's tools: `name=value` lines; # begins a comment."""
    options: dict[str, str] = {}
    for number, line in enumerate(file_input.read(file.expanduser(), what="options of Kafka").splitlines(), start=1):
        name, sign, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not sign:
            raise errors.BadInput(f"{file}, line {number}: no '=' in it; a line is `option=value`")
        options[name.strip()] = value.strip()
    return options


def _servers(hosts: str, url: str) -> str:
    servers = []
    for host in hosts.split(","):
        name, sign, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not sign:
            name, port = host, str(PORT)
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise errors.BadInput(
                f"{host!r} in {redact(url)!r} is not a broker's address: write host:port, such as broker-1:{PORT}"
            )
        servers.append(f"{name}:{port}")
    return ",".join(servers)


Tell = Callable[[KafkaError], None]
GROUP = "springtide"
SAID_S = 2.5  # seconds; a longer wait is logged
CONSUMING: dict[str, Any] = {
    "auto.offset.reset": "error",  # raise an error if records were deleted; never skip them silently
    "enable.partition.eof": True,  # report the end of a partition, because there may be gaps before it
    # bytes to fetch per partition: large enough for speed, and small enough for partitions to take turns
    "fetch.message.max.bytes": 1 << 20,
    "queued.max.messages.kbytes": 64 << 10,
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 10_000,  # refresh often, because leaders move and partitions are added
    "socket.keepalive.enable": True,
    "log_level": 2,  # this package logs errors itself `log_level=7&debug=broker` in the URL shows everything
}
PRODUCING: dict[str, Any] = {
    "delivery.report.only.error": True,
    "linger.ms": 5,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 200_000,
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    "log_level": 2,  # librdkafka logs errors itself; `log_level=7&debug=broker` in the URL shows all its messages
}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
"""Errors that waiting does not solve: a person must grant permissions or correct a password."""


class BrokerTrouble:
    """Explains why a broker does not respond, by the most informative reason so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.code: int | None = None

    def note(self, code: int, text: str) -> None:
        """Store a reason. Ignore "all brokers are down" if an earlier error already explains it."""
        if self.code is None or code != KafkaError._ALL_BROKERS_DOWN:
            self.code, self.text = code, text

    @property
    def refused(self) -> bool:
        return self.code in REFUSED


def is_old(address: Address) -> bool:
    """Return True if the options declare a broker before 0.10: no timestamps, no idempotent producers."""
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
    """Create a producer that keeps records in order: idempotent, or for old brokers with one request at a time."""
    careful = {"max.in.flight.requests.per.connection": 1} if is_old(address) else {"enable.idempotence": True}
    settings = address.settings({**PRODUCING, "acks": "all", **careful}) | {"on_delivery": failed}
    settings.pop("group.id", None)
    made: Producer = _made(Producer, settings, tell)
    return made


def topic_id(address: Address, tell: Tell, most_s: float) -> str:
    """Return the topic's id, which changes when the topic is recreated. Return an empty string if the broker gives no
    id in time.

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
        # log only the text, because the error object would keep the client alive
        log.info("topic %r: no id: %s", address.topic, str(error))
        return ""
    bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits()) if uuid is not None else (0, 0)
    return str(uuid) if any(bits) else ""


def _made(kind: type[Any], settings: dict[str, Any], tell: Tell) -> Any:
    try:
        return kind({**settings, "error_cb": tell}, logger=log)
    except KafkaException as error:
        raise unfit(reason_of(error)[1], settings) from None


def reason_of(error: KafkaException) -> tuple[int, str]:
    reason = error.args[0]
    return (reason.code(), reason.str()) if isinstance(reason, KafkaError) else (KafkaError._FAIL, str(reason))


def unreachable(address: Address, waited_s: float, why: str) -> errors.StreamUnreachable:
    return errors.StreamUnreachable(
        f"the Kafka broker at {address.servers} has not answered for {waited_s:.0f} s ({why}): check that the broker "
        f"runs, that the address is right from this host, and whether it requires SASL or TLS (security.protocol)"
    )


def refused(address: Address, why: str) -> errors.UserError:
    return errors.UserError(
        f"the Kafka broker at {address.servers} refuses topic {address.topic!r}: {why}; check the user's "
        f"permissions and password (put them in a file: ?config=client.properties)"
    )
