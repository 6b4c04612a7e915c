"""Records in columns: parts of them, rows of them, and the form that peers send."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.data.stream import records
from springtide.data.stream.records import Records

BODIES = [b"one", b"", b"three", b"44"]


@st.composite
def runs(draw: st.DrawFn) -> Records:
    bodies = (
        draw(st.lists(st.binary(max_size=20), max_size=12))
        if draw(st.booleans())
        else draw(st.integers(1, 9).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=12)))
    )
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(bodies), max_size=len(bodies)))
    first = draw(st.integers(0, 2**60))
    micros = st.integers(1_700_000_000_000_000, 1_700_000_000_000_000 + 2**33)
    times = draw(
        st.lists(
            st.one_of(micros.map(lambda us: us / 1e6), st.floats(0, 2e9)), min_size=len(bodies), max_size=len(bodies)
        )
    )
    dense = draw(st.booleans())
    offsets = [first + i if dense else first + sum(gaps[:i]) for i in range(len(bodies))]
    return Records.of(bodies, offsets=offsets, appended_at=times)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_what_a_peer_receives_is_what_was_sent(sent: Records) -> None:
    got = records.from_bytes(sent.to_bytes())
    assert got == sent
    assert got.bodies() == sent.bodies()


@settings(max_examples=60, deadline=None)
@given(runs(), st.integers(0, 12), st.integers(0, 12))
def test_two_parts_put_together_are_the_whole(whole: Records, a: int, b: int) -> None:
    a, b = sorted((a, b))
    assert records.concat([whole[:a], whole[a:b], whole[b:]]) == whole
    assert whole[a:b].bodies() == whole.bodies()[a:b]
    assert whole[a:b].owned() == whole[a:b]


@settings(max_examples=100, deadline=None)
@given(runs(), st.data())
def test_bytes_that_were_cut_or_changed_are_refused_or_still_records(sent: Records, data: st.DataObject) -> None:
    raw = bytearray(sent.to_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:place]
    else:
        raw[place] ^= data.draw(st.integers(1, 255))
    try:
        got = records.from_bytes(bytes(raw))
    except errors.BadInput:
        return
    got.bodies()
    assert len(got.payload) <= len(raw)
    assert len(raw) >= records.HEADER.size


def test_records_with_equal_sizes_and_dense_offsets_cost_no_columns() -> None:
    run = Records.of([b"x" * 100] * 50, first=7, appended_at=1e9)
    assert len(run.to_bytes()) == records.HEADER.size + 5000


def test_times_in_microseconds_take_four_bytes() -> None:
    times = [(1_700_000_000_000_000 + i * 17) / 1e6 for i in range(50)]
    run = Records.of([b"x"] * 50, appended_at=times)
    assert len(run.to_bytes()) == records.HEADER.size + 50 * 5


def test_parts_by_offset_share_the_payload() -> None:
    run = Records.of(BODIES, offsets=[3, 5, 6, 9])
    part = run.between(4, 9)
    assert part.bodies() == [b"", b"three"]
    assert part.payload is run.payload
    assert run.between(9, 9).bodies() == []


def test_rows_are_a_view_when_sizes_are_equal_and_none_when_not() -> None:
    run = Records.of([b"abcd", b"efgh", b"ijkl"])
    rows = run.rows()
    assert rows is not None and rows.shape == (3, 4) and np.shares_memory(rows, run.payload)
    assert rows[2].tobytes() == b"ijkl"
    behind = Records(run.payload, run.starts + 1, run.ends, run.offsets, run.appended_at).rows()
    assert behind is not None and [row.tobytes() for row in behind] == [b"bcd", b"fgh", b"jkl"]
    assert Records.of(BODIES).rows() is None
    assert run[np.array([True, False, True])].rows() is not None
    assert Records.none().rows() is None
    assert run[np.array([0, 2, 1])].rows() is None


def test_masks_choose_records() -> None:
    assert Records.of(BODIES)[np.array([True, False, False, True])].bodies() == [b"one", b"44"]
    assert Records.of(BODIES)[np.array([True, False, False, True])].joined().tobytes() == b"one44"


def test_a_few_bytes_cannot_claim_to_be_endless_records() -> None:
    head = records.HEADER.pack(records.MAGIC, records.VERSION, 0, 0, 0, 2**40, 0, 0, 0, 0.0)
    with pytest.raises(errors.BadInput, match="of 0 bytes"):
        records.from_bytes(head)
    assert records.from_bytes(Records.of([b""] * 3, first=5).to_bytes()) == Records.of([b""] * 3, first=5)


def test_bytes_that_are_something_else_are_refused_with_a_reason() -> None:
    with pytest.raises(errors.BadInput, match="less than a header"):
        records.from_bytes(b"")
    with pytest.raises(errors.BadInput, match="begin with"):
        records.from_bytes(b"x" * 100)
