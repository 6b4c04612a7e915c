"""Producers: pace, partition shares, record contents, and exact totals."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.data.stream import producer, record_filter
from springtide.data.stream.decode import Fixed
from springtide.data.stream.log import layout, stream
from springtide.data.stream.producer import ProduceOrder
from springtide.data.stream.records import Records, concat

COUNTED = Fixed({"key": "i8", "serial": "i8"})


def make(folder: Path, partitions: int = 3) -> stream.LogStream:
    return stream.create(folder, layout.LogSettings(partitions=partitions))


def read_all(log: stream.LogStream) -> dict[int, Records]:
    reader = log.open()
    reader.assign({seen.partition: seen.start for seen in log.bounds()})
    found: dict[int, list[Records]] = {}
    while chunks := reader.poll(0):
        for chunk in chunks:
            found.setdefault(chunk.partition, []).append(chunk.records)
    return {partition: concat(pieces) for partition, pieces in found.items()}


def test_every_record_is_in_one_partition_and_the_totals_are_exact(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    done = producer.produce(log, producer.CounterRecords(), ProduceOrder(records=1500))
    found = read_all(log)
    assert done.records == 1500 == sum(done.partitions) and done.bytes == 32 * 1500 and not done.interrupted
    assert done.partitions == [len(found[partition]) for partition in range(3)] == [500, 500, 500]
    batches = [
        record_filter.batch_of(p, records, record_filter.FilterRules(), COUNTED).batch for p, records in found.items()
    ]
    serials = np.concatenate([batch["serial"] for batch in batches])
    assert sorted(serials.tolist()) == list(range(1500))
    assert all((batch["key"] == batch["serial"] % producer.KEYS).all() for batch in batches)


def test_lines_of_files_become_records(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"a": 1}\r\n\n{"a": 2}')
    log = make(tmp_path / "log", 1)
    done = producer.produce(log, producer.LineRecords(tmp_path / "lines"), ProduceOrder(enveloped=False))
    assert done.records == 3 and read_all(log)[0].bodies() == [b'{"a": 1}', b"", b'{"a": 2}']
    with pytest.raises(errors.MissingFile):
        producer.LineRecords(tmp_path / "nowhere").take(0, 1)


def test_partitions_added_during_production_get_their_share(tmp_path: Path) -> None:
    log = make(tmp_path / "log", 1)
    asked: list[int] = []

    class Growing(producer.CounterRecords):
        def take(self, first: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
            asked.append(first)
            if len(asked) == 2:
                log.grow(2)
            return super().take(first, count)

    done = producer.produce(log, Growing(), ProduceOrder(records=3 * producer.MOST_AT_ONCE))
    assert sum(done.partitions) == done.records and len(done.partitions) == 2 and done.partitions[1] > 0


def test_producer_ends_on_request_and_reports_its_records(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    told: list[int] = []
    done = producer.produce(
        log,
        producer.CounterRecords(),
        ProduceOrder(),
        tell=lambda now: told.append(now.records),
        stop=lambda: len(told) >= 2,
    )
    assert done.interrupted and done.records == told[-1] == sum(done.partitions) == sum(
        map(len, read_all(log).values())
    )
    assert producer.produce(log, producer.CounterRecords(), ProduceOrder(seconds=0.0)).records == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.floats(0.2, 20), st.lists(st.integers(0, 50), max_size=20))
def test_partition_shares_hold_for_any_batch_sizes(partitions: int, skew: float, counts: list[int]) -> None:
    share, sent = producer.shares(partitions, skew), np.zeros(partitions, np.int64)
    for count in counts:
        dealt = producer.deal(count, sent, share)
        assert dealt.sum() == count and dealt.min() >= 0
        sent += dealt
    assert np.all(np.abs(sent - sent.sum() * share) <= partitions)


def test_first_partition_gets_its_multiple() -> None:
    assert producer.deal(1300, np.zeros(4, np.int64), producer.shares(4, 10.0)).tolist() == [
        1000,
        100,
        100,
        100,
    ]
    with pytest.raises(errors.BadInput):
        producer.shares(3, 0.0)


TAXI = ["timestamp,value", "2014-07-01 00:00:00,3600", "2014-07-01 01:00:00,7200", "2014-07-01 02:00:00,0"]


def test_trace_row_counts_until_the_next_row() -> None:
    trace = producer.read_trace(TAXI, "taxi.csv")
    assert trace.at_s.tolist() == [0.0, 3600.0, 7200.0] and trace.rate.tolist() == [1.0, 2.0, 0.0]
    numbers = producer.read_trace(["0,10", "10,20"], "n")
    assert numbers.at_s.tolist() == [0.0, 10.0] and numbers.rate.tolist() == [1.0, 2.0]
    part = trace.between(1800.0, 5400.0)
    assert part.at_s.tolist() == [0.0, 1800.0, 3600.0] and part.rate.tolist() == [1.5, 2.0, 1.0]


def test_due_records_are_the_area_under_the_trace() -> None:
    along = producer.TracePace(producer.read_trace(TAXI, "taxi.csv"), speedup=3600.0, peak=100.0)
    assert along.lasts_s == 2.0
    assert [along.due(t) for t in (0.0, 1.0, 2.0, 9.0)] == [0.0, 75.0, 125.0, 125.0]
    assert along.due(0.5) == pytest.approx(31.25) and along.rate(0.5) == pytest.approx(75.0)
    own = producer.TracePace(producer.read_trace(TAXI, "taxi.csv"), speedup=3600.0)
    assert own.due(2.0) == pytest.approx(2.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=2, max_size=9), st.lists(st.floats(0, 12), min_size=2, max_size=9))
def test_number_of_due_records_never_decreases(rates: list[float], moments: list[float]) -> None:
    trace = producer.TrafficTrace(np.arange(len(rates), dtype=np.float64), np.array([*rates[:-1], 1.0]))
    along = producer.TracePace(trace, speedup=0.7)
    due = [along.due(at) for at in sorted(moments)]
    assert all(a <= b + 1e-6 for a, b in itertools.pairwise(due))


def test_invalid_traces_are_refused_with_their_line() -> None:
    cases = (
        (["a,b", "x,1"], "line 2"),
        (["0,1", "0,2"], "must rise"),
        (["0,1", "1,-2"], "0 or more"),
        (["0,1"], "at least two"),
        (["0,1", "1"], "line 2"),
    )
    for lines, said in cases:
        with pytest.raises(errors.BadInput, match=said):
            producer.read_trace(lines, "t.csv")
    with pytest.raises(errors.BadInput, match="no traffic"):
        producer.TracePace(producer.TrafficTrace(np.array([0.0, 1.0]), np.zeros(2)))


def test_ending_source_ends_a_steady_pace(tmp_path: Path) -> None:
    log = make(tmp_path / "log")

    class Short(producer.CounterRecords):
        def take(self, first: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
            return super().take(first, min(count, max(0, 3 - first)))

    done = producer.produce(log, Short(), ProduceOrder(pace=producer.SteadyPace(1e6), seconds=5.0))
    assert done.records == 3 and done.behind_s >= 0.0
    quick = producer.produce(log, producer.CounterRecords(), ProduceOrder(pace=producer.SteadyPace(1e5), records=500))
    assert quick.records == 500 and quick.seconds >= 500 / 1e5
