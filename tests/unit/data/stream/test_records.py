"""Records in columns: slices, rows, and the wire format of peers."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.data.stream import records
from springtide.data.stream.records import Records
from tests.unit.data.stream.made_records import records_of

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
    return records_of(bodies, offsets=offsets, appended_at=times)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_records_survive_the_wire_format(sent: Records) -> None:
    got = records.from_bytes(sent.to_bytes())
    assert got.to_bytes() == sent.to_bytes()
    assert got.bodies() == sent.bodies()


@settings(max_examples=60, deadline=None)
@given(runs(), st.integers(0, 12), st.integers(0, 12))
def test_two_slices_concatenate_to_the_whole(whole: Records, a: int, b: int) -> None:
    a, b = sorted((a, b))
    assert records.concat([whole[:a], whole[a:b], whole[b:]]).to_bytes() == whole.to_bytes()
    assert whole[a:b].bodies() == whole.bodies()[a:b]


@settings(max_examples=100, deadline=None)
@given(runs(), st.data())
def test_truncated_or_altered_bytes_are_refused_or_valid_records(sent: Records, data: st.DataObject) -> None:
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


def test_slices_by_offset_share_the_payload() -> None:
    run = records_of(BODIES, offsets=[3, 5, 6, 9])
    part = run.between(4, 9)
    assert part.bodies() == [b"", b"three"]
    assert part.payload is run.payload
    assert run.between(9, 9).bodies() == []


def test_structs_are_a_view_for_equal_sizes_and_none_otherwise() -> None:
    run, four = records_of([b"abcd", b"efgh", b"ijkl"]), np.dtype("S4")
    values = run.structs(four)
    assert (
        values is not None and np.shares_memory(values, run.payload) and values.tolist() == [b"abcd", b"efgh", b"ijkl"]
    )
    behind = Records(run.payload, run.starts + 1, run.ends, run.offsets, run.appended_at).structs(np.dtype("S3"))
    assert behind is not None and behind.tolist() == [b"bcd", b"fgh", b"jkl"]
    assert records_of(BODIES).structs(four) is None
    assert run[np.array([True, False, True])].structs(four) is not None
    assert Records.none().structs(four) is None
    assert run[np.array([0, 2, 1])].structs(four) is None


def test_masks_select_records() -> None:
    assert records_of(BODIES)[np.array([True, False, False, True])].bodies() == [b"one", b"44"]
    assert records_of(BODIES)[np.array([True, False, False, True])].joined().tobytes() == b"one44"


def test_few_bytes_cannot_claim_endless_records() -> None:
    head = records.HEADER.pack(records.MAGIC, records.VERSION, 2**40, 0)
    with pytest.raises(errors.BadInput, match="of 0 bytes"):
        records.from_bytes(head)
    empty = records_of([b""] * 3, first=5).to_bytes()
    assert records.from_bytes(empty).to_bytes() == empty


def test_foreign_bytes_are_refused_with_a_reason() -> None:
    with pytest.raises(errors.BadInput, match="fewer than the"):
        records.from_bytes(b"")
    with pytest.raises(errors.BadInput, match="begin with"):
        records.from_bytes(b"x" * 100)


TIMES = st.integers(-(2**50), 2**50).map(lambda us: us / 1e6)
SEALED = st.lists(st.tuples(st.binary(max_size=40), TIMES, st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None)
@given(SEALED)
def test_sealed_records_are_unsealed_and_others_left_unchanged(given: list[tuple[bytes, float, bool]]) -> None:
    mixed = [records.seal([body], [at])[0] if sealed else b"{" + body for body, at, sealed in given]
    opened = records.unseal(records_of(mixed, first=5))
    assert opened.bodies.bodies() == [body if sealed else b"{" + body for body, _, sealed in given]
    assert not opened.damaged.any()
    for at, (_, told, sealed) in zip(opened.event_at.tolist(), given, strict=True):
        assert at == told if sealed else np.isnan(at)
    assert opened.bodies.offsets.tolist() == list(range(5, 5 + len(given)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=6), st.data())
def test_changed_byte_is_detected(bodies: list[bytes], data: st.DataObject) -> None:
    sealed = [bytearray(one) for one in records.seal(bodies, [1.5] * len(bodies))]
    which = data.draw(st.integers(0, len(bodies) - 1))
    sealed[which][data.draw(st.integers(len(records.MARK), len(sealed[which]) - 1))] ^= data.draw(st.integers(1, 255))
    opened = records.unseal(records_of([bytes(one) for one in sealed]))
    assert np.flatnonzero(opened.damaged).tolist() == [which]


def test_rows_are_sealed_like_single_records() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (50, 24), dtype=np.uint8)
    times = np.arange(50) * 1_000_001
    payload, ends = records.seal_rows(rows, times)
    singly = records.seal([row.tobytes() for row in rows], (times / 1e6).tolist())
    assert payload.tobytes() == b"".join(singly)
    assert ends.tolist() == [40 * (i + 1) for i in range(50)]


def test_bodies_are_not_copied() -> None:
    sealed = records_of(records.seal([b"abc", b"def"], [1.0, 2.0]))
    assert records.unseal(sealed).bodies.payload is sealed.payload


def test_checksums_equal_those_of_zlib() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
    edges = np.sort(np.random.default_rng(1).integers(0, 5000, 41))
    found = records.crc_each(data, edges[:-1], edges[1:])
    assert found.tolist() == [
        zlib.crc32(data[a:b].tobytes()) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
