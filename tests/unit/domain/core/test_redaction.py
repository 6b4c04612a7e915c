"""Hide credentials in any text and keep other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.domain.core import redaction
from springtide.domain.core.redaction import redact, redact_all, redact_arguments

MARK = "m4rked-Cr3dential"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://brain:{MARK}@db/brain",
        f"could not reach kafka://me:{MARK}@one:9092,two:9092/clicks?security.protocol=SASL_SSL",
        f"s3://key:{MARK}/more@bucket/x",
        f"redis://:{MARK}@cache:6379/0",
        f"amqp://me:{MARK}@{MARK}@host/x",
        f"https://{MARK}@github.com/a/b.git",
        f"https://bucket/x?X-Amz-Signature={MARK}&v=1",
        f"https://account.blob/x?sv=2&sig={MARK}",
        f"sasl.password={MARK}",
        f"sasl.jaas.config=org.apache.Login required username='u' password=\"{MARK}\";",
        f"--api-key={MARK} --epochs 3",
        f"{{'aws_secret_access_key': '{MARK}', 'region': 'x'}}",
        f'{{"token": "{MARK}"}}',
        f"Authorization: Bearer {MARK}",
        f"AWS_SECRET_ACCESS_KEY={MARK}",
        f"connection failed: host=db password={MARK} user=brain",
    ],
)
def test_credentials_are_hidden_in_any_text(text):
    assert MARK not in redact(text) and redaction.HIDDEN in redact(text)
    assert MARK not in redact(redact(text)) and redact(redact(text)) == redact(text)
    assert MARK in "".join(redaction.secrets_in(text)), "and are known from there on"


@pytest.mark.parametrize(
    "text",
    [
        "worker-1 (pid 4711) was killed by SIGKILL, without an exception",
        "http://127.0.0.1:9464/metrics",
        "postgresql://brain@db/brain",
        "log:///tmp/clicks and s3://bucket/train/checkpoints",
        "wrong secret: this address belongs to another job, or the secret file is stale",
        "secret_file=/run/springtide/secret ssl.key.location=/etc/kafka/key",
        "TOKENIZERS_PARALLELISM=false",
        "table 'clicks': id -1 at position 17 of feature 'item' is negative",
        "planned: 4 workers of 1 CPU: tokens are not keys=17",
    ],
)
def test_ordinary_texts_stay_as_they_are(text):
    assert redact(text) == text


def test_known_secret_values_are_hidden_anywhere():
    known = redaction.secrets_of_variables(
        {
            "WANDB_KEY": MARK,
            "DATABASE": "mysql://u:pass%2Fword@db/x",
            "HOME": "/home/someone",
            "API_KEY": "short",
            "GOOGLE_CREDENTIALS": "/a/file.json",
        }
    )
    assert known == {MARK, "pass%2Fword", "pass%252Fword"}
    assert redact(f"the store said {MARK}!", known) == "the store said hidden!"


def test_values_within_dicts_and_lists_are_hidden():
    told = redact_all({"why": [f"x://u:{MARK}@h"], "password": MARK, "samples": 3, "secret": ""})
    assert told == {"why": ["x://u:hidden@h"], "password": "hidden", "samples": 3, "secret": ""}


def test_value_after_a_secret_option_is_hidden():
    given = ("--epochs", "3", "--db-password", MARK, f"--token={MARK}", f"s3://a:{MARK}@b")
    assert redact_arguments(given) == ("--epochs", "3", "--db-password", "hidden", "--token=hidden", "s3://a:hidden@b")


@given(some.text(max_size=200))
def test_any_text_can_be_redacted_twice(text):
    assert redact(redact(text)) == redact(text)


PASSWORDS = some.text("abcdefgXYZ0189-._~!$*+%@/", min_size=8, max_size=30).filter(lambda one: "hidden" not in one)


@given(PASSWORDS, some.sampled_from(["postgresql", "kafka", "s3", "redis"]), some.sampled_from(["", "me"]))
def test_no_url_password_remains(password, scheme, user):
    shown = redact(f"cannot reach {scheme}://{user}:{password}@host/path: refused")
    assert shown == f"cannot reach {scheme}://{user}:hidden@host/path: refused"
