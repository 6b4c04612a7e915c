"""A real Kafka broker with SASL: jobs with a password train, others are refused at once.

It wants a newer broker than the one of `make setup-extra`: see `tests/process/faulty_broker.py`.
"""

import time

import numpy as np
import pytest

from springtide import errors
from tests.process import faulty_broker
from tests.process.faulty_broker import FaultyBroker
from tests.process.kafka_security import KafkaSasl, KafkaTls
from tests.process.test_kafka_jobs import train_while_broker_and_worker_are_killed

pytestmark = [
    pytest.mark.extra("confluent_kafka"),
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.skipif(bool(faulty_broker.missing_newer()), reason=faulty_broker.missing_newer()),
]


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256 over TLS"])
def broker(tmp_path, request):
    mechanism, _, over = request.param.partition(" over ")
    tls = KafkaTls(tmp_path / "certificates") if over else None
    asks = KafkaSasl(mechanism=mechanism)
    with FaultyBroker(tmp_path / "kafka", partitions=3, sasl=asks, tls=tls, newer=True) as running:
        running.create("counts", 3)
        yield running


@pytest.mark.timeout(400)
def test_each_record_is_trained_once_with_sasl_though_broker_and_worker_are_killed(tmp_path, broker):
    """Options are in a file, and the URL names only that file."""
    file = tmp_path / "client.properties"
    small = {"queued.min.messages": "1", "fetch.message.max.bytes": "2000"}  # so that much is to come
    file.write_text("".join(f"{name}={value}\n" for name, value in {**broker.options, **small}.items()))
    url = f"kafka://{broker.address}/counts?config={file}"
    train_while_broker_and_worker_are_killed(tmp_path, broker, url)


@pytest.mark.timeout(400)
def test_wrong_sasl_password_fails_soon_and_is_not_shown(broker):
    from springtide.data.stream.stream import open_stream

    stream = open_stream(broker.url("counts", sasl_password="tidehigh"))
    writer = stream.writer()
    writer.append(0, b"12345678", np.array([8]))
    began = time.monotonic()
    for asks in (stream.partitions, writer.flush):
        with pytest.raises(errors.UserError, match=r"refuses topic 'counts': .*[Aa]uthentication failed") as told:
            asks()
        assert "tidehigh" not in str(told.value)
    assert time.monotonic() - began < 20  # not the 30 and 60 s that a broker which is away is waited for
    with pytest.raises(errors.UserError, match="refuses topic"):
        writer.close()
    stream.close()
