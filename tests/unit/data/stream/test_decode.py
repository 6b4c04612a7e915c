"""Decoders: fixed-width fields, JSON, and user functions."""

import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.data.stream import decode
from springtide.data.stream.decode import Fixed, Json, decoder_of
from tests.unit.data.stream.made_records import records_of

FIELDS: dict[str, decode.Field] = {"id": "i8", "dense": ("f4", 3), "label": "u1"}


def packed(i: int) -> bytes:
    return struct.pack("<q3fB", i, i + 0.5, i + 1.5, i + 2.5, i % 2)


def decode_all(decoder: Any, bodies: list[bytes]) -> Any:
    parsed = decoder_of(decoder).parse(records_of(bodies))
    return parsed.batch(~parsed.bad)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 1000), st.binary(max_size=30).filter(lambda b: len(b) != 21)), max_size=12))
def test_fixed_fields_become_tensors_and_records_of_another_width_are_bad(given: list[int | bytes]) -> None:
    bodies = [packed(one) if isinstance(one, int) else one for one in given]
    parsed = Fixed(FIELDS).parse(records_of(bodies))
    assert parsed.bad.tolist() == [not isinstance(one, int) for one in given]
    good = [one for one in given if isinstance(one, int)]
    batch = parsed.batch(~parsed.bad)
    assert batch["id"].tolist() == good
    assert batch["dense"].tolist() == [[i + 0.5, i + 1.5, i + 2.5] for i in good]
    assert batch["label"].tolist() == [i % 2 for i in good] and batch["label"].dtype == torch.uint8


def test_decoded_tensors_own_their_memory() -> None:
    records = records_of([packed(1), packed(2)])
    parsed = Fixed(FIELDS).parse(records)
    batch = parsed.batch(~parsed.bad)
    batch["dense"].zero_()
    assert records.bodies() == [packed(1), packed(2)]


def test_batch_can_select_a_subset_of_good_records() -> None:
    parsed = Fixed(FIELDS).parse(records_of([packed(1), b"?", packed(2), packed(3)]))
    assert parsed.batch(np.array([True, False, False, True]))["id"].tolist() == [1, 3]


def test_event_time_can_come_from_a_field() -> None:
    parsed = Fixed({"at": "i8", "x": "f4"}, event_time="at", unit="ms").parse(
        records_of([struct.pack("<qf", 1500, 1.0), b"bad", struct.pack("<qf", 2500, 2.0)])
    )
    assert parsed.event_at is not None
    np.testing.assert_array_equal(parsed.event_at, [1.5, np.nan, 2.5])
    said = Json({"x": "f4"}, event_time="ts").parse(records_of([b'{"x": 1, "ts": 7.5}', b'{"x": 1}']))
    assert said.bad.tolist() == [False, True] and said.event_at is not None and said.event_at[0] == 7.5


def test_decoder_to_function_shapes_the_batch() -> None:
    x, y = decode_all(Fixed({"x": "f4", "y": "f4"}, to=lambda t: (t["x"], t["y"])), [struct.pack("<2f", 1, 0)])
    assert (x.tolist(), y.tolist()) == ([1.0], [0.0])


def test_json_fields_become_columns_and_records_that_do_not_fit_are_bad() -> None:
    bodies = [
        b'{"id": 1, "tags": [1, 2], "name": "a", "extra": null}',
        b'{"id": 2.5, "tags": [1, 2], "name": "b"}',
        b'{"id": 3, "tags": [1], "name": "c"}',
        b'{"id": 99999999999, "tags": [1, 2], "name": "d"}',
        b'{"id": "x", "tags": [1, 2], "name": "e"}',
        b'{"tags": [1, 2], "name": "f"}',
        b'{"id": 1, "tags": [1, 2], "name": 7}',
        b"[1, 2]",
        b"not json \xff",
        b'{"id": 4, "tags": [3, 4.5], "name": "z"}',
    ]
    parsed = Json({"id": "i4", "tags": ("f4", 2), "name": "str"}).parse(records_of(bodies))
    assert np.flatnonzero(~parsed.bad).tolist() == [0, 9]
    batch = parsed.batch(~parsed.bad)
    assert batch["id"].tolist() == [1, 4] and batch["id"].dtype == torch.int32
    assert batch["tags"].tolist() == [[1, 2], [3, 4.5]] and batch["name"] == ["a", "z"]


def test_failing_user_decoder_is_retried_record_by_record() -> None:
    def ints(bodies: list[bytes]) -> torch.Tensor:
        return torch.tensor([int(body) for body in bodies])

    parsed = decoder_of(ints).parse(records_of([b"1", b"x", b"3", b"y"]))
    with pytest.raises(decode.UndecodableRecords) as found:
        parsed.batch(np.array([True, True, True, False]))
    assert found.value.bad.tolist() == [False, True, False, False]
    assert parsed.batch(np.array([True, False, True, False])).tolist() == [1, 3]


def test_bug_in_a_user_decoder_is_not_blamed_on_records() -> None:
    with pytest.raises(errors.UserCodeFailed, match="NameError"):
        decode_all(lambda bodies: undefined_name, [b"1"])  # type: ignore[name-defined]  # noqa: F821

    def together(bodies: list[bytes]) -> int:
        if len(bodies) > 1:
            raise ValueError("two")
        return 1

    with pytest.raises(errors.UserCodeFailed, match="none of them alone"):
        decode_all(together, [b"1", b"2"])


def test_invalid_fields_and_decoders_are_refused() -> None:
    for wrong in ({"x": "float99"}, {"x": "U5"}, {"x": "u8"}):
        with pytest.raises(errors.BadInput, match="tensors are of"):
            Fixed(wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.UnknownName, match="Did you mean 'time'"):
        Fixed({"time": "f8"}, event_time="tim")
    with pytest.raises(errors.UnknownName, match="unit of time"):
        Json({"x": "f4"}, event_time="t", unit="minutes")
