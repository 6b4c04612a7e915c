"""Streams on librdkafka's mock cluster: partitions, offsets, deleted records, errors."""

import time
from types import SimpleNamespace

import pytest

from springtide import errors
from tests.unit.data.stream.kafka import mocked

pytestmark = pytest.mark.extra("confluent_kafka")


@pytest.fixture(scope="module")
def servers():
    with mocked.cluster() as client:
        yield client


@pytest.fixture
def stream(servers, request):
    from springtide.data.stream.kafka.stream import open_url

    made = open_url(f"kafka://{servers}/{request.node.name[:60]}")
    yield made
    made.close()


@pytest.fixture
def reader(stream):
    made = stream.open()
    yield made
    made.close()


def numbered(count, begin=0):
    return [b"%08d" % number for number in range(begin, begin + count)]


def test_topic_without_an_id_is_readable(stream, monkeypatch, caplog):
    caplog.set_level("INFO")  # a record that is kept must not keep the client open
    monkeypatch.setattr("springtide.data.stream.kafka.stream.ID_S", 0.2)
    mocked.fill(stream, {0: numbered(1)})
    assert stream.id == "" and stream.partitions() == 4


def test_topic_reports_its_partitions_and_their_bounds(stream):
    mocked.fill(stream, {2: numbered(30)})
    assert stream.partitions() == 4
    assert [(seen.partition, seen.start, seen.end, seen.final) for seen in stream.bounds()] == [
        (0, 0, 0, False),
        (1, 0, 0, False),
        (2, 0, 30, False),
        (3, 0, 0, False),
    ]
    assert [seen.start for seen in stream.bounds("latest")] == [0, 0, 30, 0]


def test_stream_starts_at_a_given_time(stream, monkeypatch):
    mocked.fill(stream, {0: numbered(10)})

    class Clock:  # the mock cluster does not look at times
        def offsets_for_times(self, places, timeout):
            since = {place.offset for place in places}.pop()
            for place in places:
                place.offset = {-2: [2, 0, 0, 0], -1: [10, 0, 0, 0], 1500: [7, -1, -1, -1]}[since][place.partition]
            return places

    stream.partitions()
    monkeypatch.setattr(stream, "_asking", Clock)
    assert [(seen.start, seen.end) for seen in stream.bounds("1.5")] == [(7, 10), (0, 0), (0, 0), (0, 0)]


def test_missing_topic_is_a_user_error(stream, monkeypatch):
    from springtide.data.stream.kafka import stream as kafka_stream

    monkeypatch.setattr(kafka_stream, "MISSING_S", 0.0)
    with pytest.raises(errors.BadInput, match="there is no topic"):
        stream.partitions()


def test_partitions_are_read_from_given_offsets(stream, reader):
    mocked.fill(stream, {0: numbered(2000), 1: numbered(2000)})
    reader.assign({0: 0, 1: 1990})
    before = time.time()
    got = mocked.read(reader, 2010)
    assert mocked.bodies(got, 0) == numbered(2000) and mocked.bodies(got, 1) == numbered(10, 1990)
    assert {chunk.partition: chunk.next for chunk in got} == {0: 2000, 1: 2000}
    assert reader.ends() == {0: 2000, 1: 2000}
    assert all(abs(chunk.records.appended_at - before).max() < 60 for chunk in got)


def test_chunks_are_contiguous_for_any_limit(stream, reader):
    mocked.fill(stream, {0: numbered(1000), 1: numbered(1000)})
    reader.assign({0: 0, 1: 0})
    got = mocked.read(reader, 2000, most=7)
    assert max(len(chunk.records) for chunk in got) <= 7
    for partition in (0, 1):
        mine = [chunk for chunk in got if chunk.partition == partition]
        assert [chunk.first for chunk in mine] == [0] + [chunk.next for chunk in mine[:-1]]
        assert mocked.bodies(got, partition) == numbered(1000)


def test_reassigned_partitions_seek_only_where_the_offset_changed(stream, reader):
    mocked.fill(stream, {0: numbered(100), 1: numbered(100), 2: numbered(100)})
    reader.assign({0: 0, 1: 0})
    mocked.read(reader, 200)
    mocked.fill(stream, {0: numbered(50, 100)})
    reader.assign({0: 100, 1: 40, 2: 90})
    got = mocked.read(reader, 50 + 60 + 10)
    assert mocked.bodies(got, 0) == numbered(50, 100)
    assert mocked.bodies(got, 1) == numbered(60, 40) and mocked.bodies(got, 2) == numbered(10, 90)
    reader.assign({})
    assert reader.poll(0.2) == [] and reader.ends() == {}


def test_records_deleted_before_reading_are_reported_as_expired(stream, reader):
    mocked.fill(stream, {0: [bytes(100_000)] * 80})  # the mock cluster keeps 5 MB
    low = stream.bounds()[0].start
    assert 0 < low < 80
    reader.assign({0: 0})
    got = mocked.read(reader, 80)
    assert (got[0].first, got[0].next, got[0].expired, len(got[0].records)) == (0, low, low, 0)
    assert sum(len(chunk.records) for chunk in got) == 80 - low and got[-1].next == 80


def test_partition_ending_before_the_read_offset_is_an_error(stream, monkeypatch):
    from springtide.data.stream.kafka import stream as kafka_stream

    monkeypatch.setattr(kafka_stream, "SHRUNK_S", 0.0)
    mocked.fill(stream, {0: numbered(10)})
    reader = stream.open()
    reader.assign({0: 500})
    with pytest.raises(errors.StreamShrunk, match="ends at 10, but the job has read up to 500"):
        for _ in range(50):
            reader.poll(0.2)
    reader.close()


def test_unknown_librdkafka_option_is_named_without_its_value(servers):
    from springtide.data.stream.kafka.stream import open_url

    for option in ("fetch.wait.maximum", "fetch.wait.max.ms"):
        with pytest.raises(errors.BadInput, match=option) as told:
            open_url(f"kafka://{servers}/clicks?{option}=tidehigh").partitions()
        assert "tidehigh" not in str(told.value)


def test_every_client_refuses_a_misspelt_option_and_hides_its_value(servers):
    from springtide.data.stream.kafka.stream import open_url

    for option in ("sasl.passwrd", "security.protocoll"):
        made = open_url(f"kafka://{servers}/clicks?{option}=tidehigh")
        for asks in (made.partitions, made.open, made.writer):
            with pytest.raises(errors.BadInput, match=f"no option '{option}'; supported options are on") as told:
                asks()
            assert "tidehigh" not in str(told.value)
        made.close()


def test_sasl_and_tls_options_reach_consumers_and_producers(monkeypatch, tmp_path):
    from springtide.data.stream.kafka import client, librdkafka
    from springtide.data.stream.kafka.stream import open_url

    said = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "tide=high",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/me.pem",
        "ssl.key.location": "/etc/me.key",
        "ssl.key.password": "low",
        "enable.ssl.certificate.verification": "false",
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in said.items() if name != "ssl.ca.location"))
    reached = {}
    monkeypatch.setattr(client, "Consumer", lambda settings, logger: reached.setdefault("asking", settings))
    monkeypatch.setattr(client, "Producer", lambda settings, logger: reached.setdefault("producing", settings))
    monkeypatch.setattr(
        librdkafka.RawConsumer, "__init__", lambda _, topic, settings, tell: reached.update(reading=settings)
    )
    stream = open_url(f"kafka://one/clicks?config={file}&ssl.ca.location=/etc/ca.pem")
    stream._asking(), stream.open(), stream.writer()
    assert set(reached) == {"asking", "producing", "reading"}
    for kind, settings in reached.items():
        assert {name: settings.get(name) for name in said} == said, kind
        assert settings["bootstrap.servers"] == "one:9092"
    assert "tide" not in stream.url and "low" not in stream.url


def test_broker_wait_is_logged_early_and_once(monkeypatch, caplog):
    from springtide.data.stream.kafka import client
    from springtide.data.stream.kafka import stream as kafka_stream

    monkeypatch.setattr(kafka_stream, "SAID_S", 0.1)
    stream = kafka_stream.KafkaStream(client.parse("kafka://127.0.0.1:1/clicks"), answer_s=0.5)
    with pytest.raises(errors.StreamUnreachable):
        stream.partitions()
    stream.close()
    (said,) = [one.message for one in caplog.records if "waiting for the Kafka broker" in one.message]
    assert "127.0.0.1:1, up to 0 s" in said or "127.0.0.1:1, up to 1 s" in said


def test_missing_broker_is_unreachable_after_a_timeout():
    from springtide.data.stream.kafka import client
    from springtide.data.stream.kafka.stream import KafkaReader, KafkaStream

    nowhere = client.parse("kafka://127.0.0.1:1/clicks")
    stream = KafkaStream(nowhere, answer_s=0.1)
    with pytest.raises(errors.StreamUnreachable, match=r"127\.0\.0\.1:1 has not answered"):
        stream.partitions()
    stream.close()
    reader = KafkaReader(nowhere, away_s=0.1)
    reader.assign({0: 0})
    with pytest.raises(errors.StreamUnreachable):
        for _ in range(50):
            assert reader.poll(0.2) == []
    reader.close()
    with pytest.raises(errors.BadInput, match="closed"):
        reader.poll(0.0)


def test_undelivered_records_are_an_error():
    from springtide.data.stream.kafka import client
    from springtide.data.stream.kafka.stream import KafkaWriter

    writer = KafkaWriter(client.parse("kafka://127.0.0.1:1/clicks"), away_s=0.3)
    writer.append(0, b"abc", mocked.np.array([1, 3]))
    with pytest.raises(errors.StreamUnreachable, match="2 records wait"):
        writer.close()


def test_record_for_a_missing_partition_is_refused(stream, monkeypatch):
    from springtide.data.stream.kafka import stream as kafka_stream

    monkeypatch.setattr(kafka_stream, "NEW_S", 0.3)
    mocked.fill(stream, {3: numbered(1)})
    with pytest.raises(errors.BadInput, match=r"1 records did not reach .* Unknown partition"):
        mocked.fill(stream, {17: numbered(1)})


def test_reason_for_an_unresponsive_broker_is_kept():
    from confluent_kafka import KafkaError

    from springtide.data.stream.kafka.client import BrokerTrouble

    trouble = BrokerTrouble("no answer yet")
    trouble.note(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert (trouble.text, trouble.refused) == ("1/1 brokers are down", False)
    trouble.note(KafkaError._AUTHENTICATION, "wrong password")
    trouble.note(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert (trouble.text, trouble.refused) == ("wrong password", True)
    trouble.note(KafkaError._TRANSPORT, "connection refused")
    assert (trouble.text, trouble.refused) == ("connection refused", False)


def test_broker_that_refuses_access_fails_at_once_unless_it_worked_before(monkeypatch):
    from confluent_kafka import KafkaError, KafkaException

    from springtide.data.stream.kafka import client
    from springtide.data.stream.kafka.stream import KafkaStream

    class Away:
        def list_topics(self, *_):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        offsets_for_times = list_topics

        def poll(self, _):
            stream._note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))

        def close(self):
            pass

    monkeypatch.setattr(client, "consumer", lambda *_: Away())
    stream = KafkaStream(client.parse("kafka://one/clicks"), answer_s=0.3)
    with pytest.raises(errors.UserError, match="refuses topic 'clicks': wrong password"):
        stream.partitions()
    stream._partitions, stream._counted_at = 3, float("inf")
    with pytest.raises(errors.StreamUnreachable, match="wrong password"):
        stream.bounds()
    stream.close()


def test_topic_unknown_to_a_restarted_broker_is_waited_for(monkeypatch):
    """A restarted broker answers before it knows its topics; its downtime does not count."""
    from confluent_kafka import KafkaError, KafkaException

    from springtide.data.stream.kafka import client
    from springtide.data.stream.kafka import stream as kafka_stream

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    class Restarting:
        def list_topics(self, *_):
            if clock.now < 20:
                clock.now += 5
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            if clock.now < 24:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            return SimpleNamespace(topics={"clicks": SimpleNamespace(error=None, partitions=[0, 1, 2])})

        def poll(self, _):
            pass

        close = lambda self: None  # noqa: E731

    clock = Clock()
    monkeypatch.setattr(kafka_stream, "time", clock)
    monkeypatch.setattr(client, "consumer", lambda *_: Restarting())
    stream = kafka_stream.KafkaStream(client.parse("kafka://one/clicks"))
    assert stream.partitions() == 3
    stream.close()
