"""Record envelopes in the native core: checked bounds and no silent copies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import _native, errors
from springtide.data.stream import records
from tests.unit.data.stream.made_records import records_of
from tests.unit.native import envelope_reference

PAYLOAD = np.frombuffer(b"0123456789", np.uint8)


def test_record_ranges_beyond_the_payload_and_short_buffers_are_refused() -> None:
    start, end = np.array([0]), np.array([11])
    with pytest.raises(errors.BadInput, match="bytes 0 to 11 of 10"):
        _native.crc32_each(PAYLOAD, start, end, np.empty(1, np.uint32))
    with pytest.raises(errors.BadInput, match="as much room"):
        _native.crc32_each(PAYLOAD, start, np.array([1]), np.empty(2, np.uint32))
    with pytest.raises(errors.BadInput, match="as many ends"):
        _native.open_envelopes(PAYLOAD, start, np.array([1, 2]), np.empty(1, np.uint8), np.empty(1, np.int64))


def test_arrays_of_another_dtype_are_refused_instead_of_copied() -> None:
    start, end = np.array([0, 1]), np.array([1, 3])
    for wrong in (np.empty(2, np.int32), np.empty(4, np.uint32)[::2]):
        with pytest.raises(TypeError):
            _native.crc32_each(PAYLOAD, start, end, wrong)
    with pytest.raises(TypeError):
        _native.crc32_each(PAYLOAD, start.astype(np.int32), end, np.empty(2, np.uint32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans(), st.integers(0, 60)), max_size=8))
def test_native_unsealing_matches_the_reference(made: list[tuple[bytes, bool, int]]) -> None:
    bodies = []
    for body, sealed, place in made:
        one = bytearray(records.seal([body], [len(body) / 7])[0] if sealed else body)
        if place < len(one):
            one[place] ^= 1
        bodies.append(bytes(one))
    run = records_of(bodies)
    found = []
    for how in (_native, envelope_reference):
        states, times = np.empty(len(run), np.uint8), np.empty(len(run), np.int64)
        counts = how.open_envelopes(run.payload, run.starts, run.ends, states, times)
        sums = np.empty(len(run), np.uint32)
        how.crc32_each(run.payload, run.starts, run.ends, sums)
        found.append((counts, states.tolist(), times.tolist(), sums.tolist()))
    assert found[0] == found[1]
