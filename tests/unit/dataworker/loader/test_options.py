"""Loader state: plain values, accepted only by a loader of equal data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.dataworker.loader import options
from springtide.dataworker.loader.sampler import LoaderPosition

KIND = dict(unit="samples", samples=100, shuffle=True)


@given(
    epoch=st.integers(0, 2**31), done=st.integers(0, 100), mark=st.integers(0, 2**32 - 1), seed=st.integers(0, 2**62)
)
def test_loader_state_survives_json(epoch, done, mark, seed):
    state = json.loads(json.dumps(options.written(KIND, LoaderPosition(epoch, done, mark), seed)))
    assert options.read(state, KIND) == (LoaderPosition(epoch, done, mark), seed)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (dict(unit="samples", samples=99, shuffle=True), "samples=100, and is loaded into one with samples=99"),
        (dict(unit="samples", samples=100, shuffle=False), "shuffle=True"),
        (dict(unit="batches", samples=None, shuffle=False), "unit='samples'"),
    ],
)
def test_state_of_another_dataset_is_refused(other, said):
    with pytest.raises(errors.BadInput, match=said):
        options.read(options.written(KIND, LoaderPosition(0, 0), 0), other)


@pytest.mark.parametrize("state", [{}, {"format": 2}, {"_snapshot": {}}, None, "state", 3])
def test_state_of_another_loader_kind_is_refused(state):
    with pytest.raises(errors.BadInput, match="expected 1, as ElasticLoader"):
        options.read(state, KIND)


@pytest.mark.parametrize("broken", [{"done": 101}, {"done": -1}, {"epoch": -1}])
def test_position_that_does_not_exist_is_refused(broken):
    with pytest.raises(errors.BadInput, match="outside the epoch"):
        options.read({**options.written(KIND, LoaderPosition(0, 0), 0), **broken}, KIND)


@pytest.mark.parametrize("field", ["epoch", "done", "mark", "seed"])
@pytest.mark.parametrize("value", [None, "7", 1.5])
def test_non_numeric_state_field_is_refused(field, value):
    state = options.written(KIND, LoaderPosition(1, 2, 3), 4) | {field: value}
    with pytest.raises(errors.BadInput, match=f"{field} {value!r}"):
        options.read(state, KIND)
