"""librdkafka's mock cluster for tests: a broker inside this process, good for small topics.

It forgets what is beyond 5 MB or 100,000 messages of a partition without a word: here that is a retention to test.
"""

import contextlib
from collections.abc import Iterator

import numpy as np

KEPT_BYTES = 5 << 20  # of a partition


@contextlib.contextmanager
def cluster(brokers: int = 1) -> Iterator[str]:
    """Address of a mock cluster; any requested topic exists with 4 partitions."""
    import confluent_kafka

    keeper = confluent_kafka.Producer({"test.mock.num.brokers": brokers, "bootstrap.servers": "x", "log_level": 0})
    try:
        keeper.produce("settled", b"")  # opens the last of its own connections
        keeper.flush(10)
        listed = keeper.list_topics(timeout=10).brokers.values()
        yield ",".join(f"{broker.host}:{broker.port}" for broker in listed)
    finally:
        keeper.close()


def fill(stream, bodies_of: dict[int, list[bytes]]) -> None:
    """Append these, by partition, and wait until they are kept."""
    writer = stream.writer()
    for partition, bodies in bodies_of.items():
        writer.append(partition, b"".join(bodies), np.cumsum([len(body) for body in bodies]))
    writer.close()


def read(reader, count: int, *, most: int = 65536, timeout_s: float = 10.0) -> list:
    """Poll chunks until this many records (or expired ones) have come."""
    found: list = []
    while sum(len(chunk.records) + chunk.expired for chunk in found) < count:
        more = reader.poll(timeout_s, most)
        assert more, f"nothing came for {timeout_s} s; before: {found}"
        found += more
    return found


def bodies(chunks, partition: int) -> list[bytes]:
    """All records of a partition, in the order they came."""
    return [body for chunk in chunks if chunk.partition == partition for body in chunk.records.bodies()]
