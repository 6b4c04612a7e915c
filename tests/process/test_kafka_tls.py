"""A real Kafka broker with TLS and client certificates: jobs train, other clients are refused."""

import pytest

from springtide import errors
from springtide_lab.testing import kafka_broker
from tests.process.faulty_broker import FaultyBroker
from tests.process.kafka_security import KafkaTls
from tests.process.test_kafka_jobs import train_while_broker_and_worker_are_killed

pytestmark = [
    pytest.mark.extra("confluent_kafka"),
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.skipif(bool(kafka_broker.missing()), reason=kafka_broker.missing()),
]


@pytest.fixture
def tls(tmp_path):
    pytest.importorskip("cryptography")
    return KafkaTls(tmp_path / "certificates")


@pytest.fixture
def broker(tmp_path, tls):
    with FaultyBroker(tmp_path / "kafka", partitions=3, tls=tls) as running:
        yield running


@pytest.mark.timeout(400)
def test_each_record_is_trained_once_over_tls_though_broker_and_worker_are_killed(tmp_path, broker, tls):
    """Options are in a file, and the URL names only that file."""
    file = tmp_path / "client.properties"
    small = {"queued.min.messages": "1", "fetch.message.max.bytes": "2000"}  # so that much is to come
    options = {**kafka_broker.OLD_BROKER, **tls.options(), **small}
    file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    url = f"kafka://{broker.address}/counts?config={file}"
    train_while_broker_and_worker_are_killed(tmp_path, broker, url)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"security_protocol": "plaintext"}, "answered .*TLS"),
        ({"ssl_ca_location": "{folder}/stranger.crt"}, "certificate verify failed"),
        (
            {"ssl_certificate_location": "{folder}/stranger.crt", "ssl_key_location": "{folder}/stranger.key"},
            "certificate",
        ),
    ],
    ids=["in the clear", "a broker whose authority we do not know", "a client whose authority it does not know"],
)
def test_client_with_wrong_certificates_is_refused_with_a_reason(broker, tls, told, said):
    from springtide.data.stream.kafka.client import parse
    from springtide.data.stream.kafka.stream import KafkaStream

    given = {name: value.format(folder=tls.folder) for name, value in told.items()}
    stream = KafkaStream(parse(broker.url("counts", **given)), answer_s=4.0)
    try:
        with pytest.raises(errors.StreamUnreachable, match=said):
            stream.partitions()
    finally:
        stream.close()
