"""Envelopes: what was sealed comes back, what was changed is found out, what has none is left as it is."""

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.data.stream import envelope
from springtide.data.stream.records import Records

TIMES = st.integers(-(2**50), 2**50).map(lambda us: us / 1e6)
SEALED = st.lists(st.tuples(st.binary(max_size=40), TIMES, st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None)
@given(SEALED)
def test_sealed_records_come_back_and_others_are_left_alone(given: list[tuple[bytes, float, bool]]) -> None:
    mixed = [envelope.seal([body], [at])[0] if sealed else b"{" + body for body, at, sealed in given]
    opened = envelope.unseal(Records.of(mixed, first=5))
    assert opened.bodies.bodies() == [body if sealed else b"{" + body for body, _, sealed in given]
    assert not opened.damaged.any()
    for at, (_, told, sealed) in zip(opened.event_at.tolist(), given, strict=True):
        assert at == told if sealed else np.isnan(at)
    assert opened.bodies.offsets.tolist() == list(range(5, 5 + len(given)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=6), st.data())
def test_a_byte_that_changed_is_found_out(bodies: list[bytes], data: st.DataObject) -> None:
    sealed = [bytearray(one) for one in envelope.seal(bodies, [1.5] * len(bodies))]
    which = data.draw(st.integers(0, len(bodies) - 1))
    sealed[which][data.draw(st.integers(len(envelope.MARK), len(sealed[which]) - 1))] ^= data.draw(st.integers(1, 255))
    opened = envelope.unseal(Records.of([bytes(one) for one in sealed]))
    assert np.flatnonzero(opened.damaged).tolist() == [which]


def test_rows_are_sealed_as_single_records_are() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (50, 24), dtype=np.uint8)
    times = np.arange(50) * 1_000_001
    payload, ends = envelope.seal_rows(rows, times)
    singly = envelope.seal([row.tobytes() for row in rows], (times / 1e6).tolist())
    assert payload.tobytes() == b"".join(singly)
    assert ends.tolist() == [40 * (i + 1) for i in range(50)]


def test_bodies_are_not_copied() -> None:
    records = Records.of(envelope.seal([b"abc", b"def"], [1.0, 2.0]))
    assert envelope.unseal(records).bodies.payload is records.payload


def test_checksums_are_those_of_zlib() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
    edges = np.sort(np.random.default_rng(1).integers(0, 5000, 41))
    found = envelope.crc_each(data, edges[:-1], edges[1:])
    assert found.tolist() == [
        zlib.crc32(data[a:b].tobytes()) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
