"""Parse kafka:// URLs and hide their secrets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors

client = pytest.importorskip("springtide.data.stream.kafka.client")


def test_hosts_topic_and_options_are_read():
    got = client.parse("kafka://one:9093,two/clicks?security.protocol=SSL&ssl.ca.location=/etc/ca.pem")
    assert (got.servers, got.topic) == ("one:9093,two:9092", "clicks")
    assert got.options == {"security.protocol": "SSL", "ssl.ca.location": "/etc/ca.pem"}
    assert got.shown == "kafka://one:9093,two/clicks?security.protocol=SSL&ssl.ca.location=/etc/ca.pem"


def test_url_options_override_defaults():
    got = client.parse("kafka://one/clicks?fetch.wait.max.ms=7").settings({"fetch.wait.max.ms": 100, "log_level": 2})
    assert got["fetch.wait.max.ms"] == "7" and got["log_level"] == 2 and got["bootstrap.servers"] == "one:9092"


@pytest.mark.parametrize(
    "url, wrong",
    [
        ("kafka:///clicks", "not the URL of a Kafka topic"),
        ("kafka://one:9092", "not the URL of a Kafka topic"),
        ("kafka://one:9092/clicks/more", "not the URL of a Kafka topic"),
        ("kafka://one:port/clicks", "not a broker's address"),
        ("kafka://one:99999/clicks", "not a broker's address"),
        ("kafka://one:9092,/clicks", "not a broker's address"),
        ("kafka://one/clicks?fetch.wait.max.ms=", "no value"),
        ("kafka://one/clicks?auto.offset.reset=latest", "springtide.stream"),
        ("kafka://one/clicks?enable.auto.commit=true", "itself tracks its position"),
    ],
)
def test_invalid_kafka_url_names_its_wrong_part(url, wrong):
    with pytest.raises(errors.BadInput, match=wrong):
        client.parse(url)


def test_kafka_options_may_come_from_a_file(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("# for the cluster\nsecurity.protocol = SASL_SSL\nsasl.password=tide=high\n\n")
    got = client.parse(f"kafka://one/clicks?config={file}&security.protocol=SASL_PLAINTEXT")
    assert got.options == {"security.protocol": "SASL_PLAINTEXT", "sasl.password": "tide=high"}
    assert "tide" not in got.shown and "tide" not in repr(got)


def test_missing_or_invalid_options_file_is_named(tmp_path):
    with pytest.raises(errors.MissingFile, match=r"absent\.properties"):
        client.parse(f"kafka://one/clicks?config={tmp_path}/absent.properties")
    (tmp_path / "bad.properties").write_text("a=b\nhm\n")
    with pytest.raises(errors.BadInput, match="line 2"):
        client.parse(f"kafka://one/clicks?config={tmp_path}/bad.properties")


secrets = st.text("abcXYZ019", min_size=8, max_size=12)


@given(user=secrets, password=secrets, other=secrets)
def test_secrets_are_read_but_never_shown(user, password, other):
    user, password, other = f"user-{user}", f"word-{password}", f"key-{other}"
    how = "sasl.mechanism=PLAIN&security.protocol=SASL_SSL"
    url = f"kafka://{user}:{password}@one:9092/clicks?ssl.key.password={other}&{how}"
    got = client.parse(url)
    assert got.options["sasl.username"] == user and got.options["sasl.password"] == password
    assert got.options["ssl.key.password"] == other
    for shown in (got.shown, repr(got), str(got)):
        assert password not in shown and other not in shown
    assert "sasl.mechanism=PLAIN" in got.shown and user in got.shown


def test_error_for_an_invalid_url_hides_its_secrets():
    with pytest.raises(errors.BadInput) as told:
        client.parse("kafka://me:tide@one:port/clicks?sasl.password=high")
    assert "tide" not in str(told.value) and "high" not in str(told.value)


@pytest.mark.parametrize("said", ["", "&security.protocol=ssl", "&security.protocol=plaintext"])
def test_user_without_a_sasl_protocol_is_refused(said):
    """librdkafka would leave the user out in silence, and the broker would hang up."""
    with pytest.raises(
        errors.BadInput, match=r"'kafka://me:hidden@one:9092/clicks.*security.protocol=SASL_SSL"
    ) as told:
        client.parse(f"kafka://me:tide@one:9092/clicks?client.id=x{said}")
    assert "tide" not in str(told.value)
    with pytest.raises(errors.BadInput, match="has a user"):
        client.parse(f"kafka://one:9092/clicks?sasl.username=me{said}")


def test_user_in_the_url_is_passed_with_the_given_protocol():
    got = client.parse("kafka://me:tide@one:9092/clicks?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN")
    assert got.options["sasl.username"] == "me" and got.options["security.protocol"] == "SASL_PLAINTEXT"
