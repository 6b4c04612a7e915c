"""Settings for a Kafka broker with passwords and for its clients."""

import pytest

from tests.process.kafka_security import BROKER, KafkaSasl


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("tls", [False, True])
def test_kafka_client_options_match_the_brokers_listener(mechanism, tls):
    asks = KafkaSasl(mechanism=mechanism)
    protocol = "sasl_ssl" if tls else "sasl_plaintext"
    settings = dict(line.split("=", 1) for line in asks.broker(tls=tls))
    assert mechanism in settings["sasl.enabled.mechanisms"].split(",")
    assert f"listener.name.{protocol}.{mechanism.lower()}.sasl.jaas.config" in settings
    told = asks.options(tls=tls)
    assert told["security.protocol"] == protocol and told["sasl.mechanism"] == mechanism
    assert (told["sasl.username"], told["sasl.password"]) == (asks.user, asks.password)


def test_user_is_defined_by_settings_or_in_zookeeper():
    plain, scram = (KafkaSasl(mechanism=one) for one in ("PLAIN", "SCRAM-SHA-512"))
    assert any(f'user_{plain.user}="{plain.password}"' in line for line in plain.broker(tls=False))
    assert not plain.scram()
    assert not any(f"user_{scram.user}" in line for line in scram.broker(tls=False))
    assert any(f"user_{BROKER}" in line for line in scram.broker(tls=False)), "it speaks with itself by PLAIN"
    assert f"SCRAM-SHA-512=[password={scram.password}]" in scram.scram() and scram.user in scram.scram()
