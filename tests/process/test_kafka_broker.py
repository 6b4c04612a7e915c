"""Streams on a real Kafka broker with kills, restarts, hangs and new partitions: records come once, in order."""

import threading

import numpy as np
import pytest

from springtide_lab.testing import kafka_broker
from tests import waiting
from tests.process.faulty_broker import FaultyBroker

pytestmark = [
    pytest.mark.extra("confluent_kafka"),
    pytest.mark.process,
    pytest.mark.skipif(bool(kafka_broker.missing()), reason=kafka_broker.missing()),
]


@pytest.fixture
def broker(tmp_path):
    with FaultyBroker(tmp_path, partitions=3) as running:
        yield running


def numbered(count, begin=0):
    return [b"%08d" % number for number in range(begin, begin + count)]


def append(writer, partition, bodies):
    writer.append(partition, b"".join(bodies), np.cumsum([len(body) for body in bodies]))


class Reading:
    """Everything a reader gets, checked for contiguous chunks."""

    def __init__(self, stream, positions):
        self.reader = stream.open()
        self.reader.assign(positions)
        self.at = dict(positions)
        self.bodies = {partition: [] for partition in positions}

    def until(self, count):
        for _ in range(600):
            if sum(map(len, self.bodies.values())) >= count:
                return
            for chunk in self.reader.poll(0.1):
                assert chunk.first == self.at[chunk.partition] and chunk.expired == 0
                self.at[chunk.partition] = chunk.next
                self.bodies[chunk.partition] += chunk.records.bodies()
        raise AssertionError(f"only {sum(map(len, self.bodies.values()))} of {count} records came in a minute")


@pytest.mark.soak  # test_kafka_jobs.py kills the broker of a whole job
def test_kafka_reader_resumes_after_a_broker_restart_and_finds_new_partitions(broker):
    from springtide.data.stream.kafka.stream import open_url

    stream = open_url(broker.url("clicks"))
    assert stream.partitions() == 3
    writer = stream.writer()
    for partition in range(3):
        append(writer, partition, numbered(500))
    writer.flush()
    reading = Reading(stream, {0: 0, 1: 0, 2: 0})
    reading.until(1500)

    broker.kill()
    assert reading.reader.poll(0.2) == []
    assert stream.partitions() == 3  # as it was when the broker last answered
    broker.start()
    broker.grow("clicks", 4)
    for partition in range(3):
        append(writer, partition, numbered(500, 500))
    writer.flush()
    reading.until(3000)
    assert all(bodies == numbered(1000) for bodies in reading.bodies.values())

    waiting.until(lambda: stream.partitions() == 4, "the partition that was added", every_s=0.1)
    append(writer, 3, numbered(50))
    writer.close()
    reading.reader.close()
    assert [(seen.start, seen.end) for seen in stream.bounds()] == [(0, 1000)] * 3 + [(0, 50)]
    newest = Reading(stream, {3: 0})
    newest.until(50)
    newest.reader.close()
    stream.close()


@pytest.mark.soak
def test_records_deleted_by_retention_are_reported_as_expired(broker):
    from springtide.data.stream.kafka.stream import open_url

    broker.create("short", 1, retention_bytes="20000", segment_bytes="10000")
    stream = open_url(broker.url("short"))
    writer = stream.writer()
    for begin in range(0, 5000, 100):
        append(writer, 0, numbered(100, begin))
        writer.flush()
    low = waiting.until(
        lambda: stream.bounds()[0].start, "the broker deletes, from 30 s after its start on", every_s=0.1
    )
    reader = stream.open()
    reader.assign({0: 0})
    found = []
    while not found or found[-1].next < 5000:
        found += reader.poll(1.0)
    assert found[0].first == 0 and found[0].expired == found[0].next >= low > 0
    assert [body for chunk in found for body in chunk.records.bodies()] == numbered(5000)[found[0].next :]
    for each in (reader, writer, stream):
        each.close()


@pytest.mark.soak
def test_broker_hanging_for_30_s_loses_and_repeats_nothing(broker):
    from springtide.data.stream.kafka.stream import open_url

    stream = open_url(broker.url("hanging"))
    stream.partitions()
    writer = stream.writer()
    reading = Reading(stream, {0: 0, 1: 0, 2: 0})
    append(writer, 0, numbered(1000))
    writer.flush()
    reading.until(1000)
    broker.stop()
    waker = threading.Timer(30.0, broker.wake)
    waker.start()
    append(writer, 1, numbered(1000))
    writer.flush()
    reading.until(2000)
    waker.join()
    assert reading.bodies[1] == numbered(1000) and reading.bodies[0] == numbered(1000)
    for each in (reading.reader, writer, stream):
        each.close()
