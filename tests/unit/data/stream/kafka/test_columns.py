"""Messages become columns: the same bytes, offsets and times, by partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.extra("confluent_kafka")

NOW = 5000.0


def message(partition, offset, value, at=None):
    from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

    stamp = (TIMESTAMP_NOT_AVAILABLE, -1) if at is None else (TIMESTAMP_CREATE_TIME, at)
    return Message(topic="t", partition=partition, offset=offset, value=value, timestamp=stamp)


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.binary(max_size=9) | st.none()), max_size=40)


@given(runs=runs, timed=st.booleans())
def test_every_message_is_found_again_in_its_partition(runs, timed):
    from springtide.data.stream.kafka import columns

    at, sent, wanted = [0] * 4, [], {}
    for number, (partition, step, value) in enumerate(runs):
        at[partition] += step
        sent.append(message(partition, at[partition], value, 1000 * number if timed else None))
        wanted.setdefault(partition, []).append((at[partition], value or b"", float(number) if timed else NOW))
    got = columns.by_partition(sent, now=NOW)
    assert {
        partition: list(zip(read.offsets.tolist(), read.bodies(), read.appended_at.tolist(), strict=True))
        for partition, read in got.items()
    } == wanted


def test_a_message_without_a_time_was_appended_now():
    from springtide.data.stream.kafka import columns

    got = columns.records_of([message(0, 7, b"a", -1), message(0, 8, b"b", 3000)], now=NOW)
    assert np.array_equal(got.appended_at, [NOW, 3.0])
