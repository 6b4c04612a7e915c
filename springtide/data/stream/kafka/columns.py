"""Messages of confluent-kafka as columns, with the least Python a message: whole lists go through C at once.

In: a list from `Consumer.consume`, without errors in it. Out: `Records` a partition, in the order they came. The calls
that matter are those made once a message: partition, value and length; offsets are counted when the first and the last
say that none is missing; a broker that keeps no times (before 0.10) is not asked for them. Next: reader.py.
"""

from collections.abc import Sequence

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from springtide.data.stream.records import Floats, Ints, Records


def by_partition(messages: Sequence[Message], *, now: float) -> dict[int, Records]:
    """Each partition's records. `now` stands for the time of append where the broker keeps none."""
    if not messages:
        return {}
    partitions = list(map(Message.partition, messages))
    first = partitions[0]
    assert first is not None
    if partitions.count(first) == len(partitions):
        return {first: records_of(messages, now=now)}
    runs: dict[int, list[Message]] = {}
    for partition, message in zip(partitions, messages, strict=True):
        assert partition is not None
        if partition in runs:
            runs[partition].append(message)
        else:
            runs[partition] = [message]
    return {partition: records_of(run, now=now) for partition, run in runs.items()}


def records_of(messages: Sequence[Message], *, now: float) -> Records:
    """Messages of one partition. One without a value (a deletion, in a compacted topic) is a record of no bytes."""
    bodies: list[bytes] = list(map(Message.value, messages))  # type: ignore[arg-type]  # but for deletions: below
    try:
        payload = b"".join(bodies)
    except TypeError:
        bodies = [body or b"" for body in bodies]
        payload = b"".join(bodies)
    ends = np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), dtype=np.int64)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    return Records(np.frombuffer(payload, np.uint8), starts, ends, _offsets(messages), _times(messages, now))


def _offsets(messages: Sequence[Message]) -> Ints:
    first, last = messages[0].offset(), messages[-1].offset()
    assert first is not None and last is not None
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return np.fromiter(map(Message.offset, messages), np.int64, len(messages))


def _times(messages: Sequence[Message], now: float) -> Floats:
    if messages[-1].timestamp()[0] == TIMESTAMP_NOT_AVAILABLE:  # then those before have none either
        return np.full(len(messages), now)
    millis = np.array([time for _, time in map(Message.timestamp, messages)], np.float64)
    return np.where(millis < 0, now, millis / 1000)
