"""Any state dict is taken apart and put together again, exactly."""

import collections
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from springtide import errors
from springtide.checkpoint.checkpointer import state_tree

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
tensors = some.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    some.lists(some.integers(0, 3), max_size=3),
    some.sampled_from(DTYPES),
)
keys = some.one_of(some.text(max_size=4), some.integers(), some.tuples(some.integers(-9, 9), some.booleans()))
leaves = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(allow_nan=False),
    some.text(max_size=8),
    some.binary(max_size=8),
    tensors,
    some.sampled_from(DTYPES),
    some.builds(torch.Size, some.lists(some.integers(0, 5))),
)
states = some.recursive(
    leaves,
    lambda inner: some.one_of(
        some.lists(inner, max_size=3),
        some.lists(inner, max_size=3).map(tuple),
        some.dictionaries(keys, inner, max_size=3),
        some.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        some.sets(some.integers(), max_size=3),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(states)
def test_a_state_survives_being_taken_apart(state: Any) -> None:
    taken = state_tree.split_state(state)

    assert same(state_tree.join_state(taken.skeleton, taken.tensors), state)


def test_numpy_arrays_scalars_and_generator_states_survive() -> None:
    state = {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(1.5),
        "rng": np.random.RandomState(3).get_state(),
    }
    taken = state_tree.split_state(state)
    back = state_tree.join_state(taken.skeleton, taken.tensors)

    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["scalar"] == 1.5 and type(back["scalar"]) is np.float32
    np.random.RandomState().set_state(back["rng"])


def test_the_state_of_a_scheduler_with_milestones_survives() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    taken = state_tree.split_state(scheduler.state_dict())
    scheduler.load_state_dict(state_tree.join_state(taken.skeleton, taken.tensors))

    assert type(scheduler.milestones) is collections.Counter


def test_tied_tensors_are_kept_once_and_stay_tied() -> None:
    weight = torch.ones(3)
    taken = state_tree.split_state({"a": weight, "b": torch.nn.Parameter(weight), "c": torch.ones(3)})
    back = state_tree.join_state(taken.skeleton, taken.tensors)

    assert len(taken.tensors) == 2
    assert back["a"] is back["b"]


def test_tensors_that_begin_at_one_place_are_the_same_only_if_they_show_the_same() -> None:
    base = torch.complex(torch.arange(6.0), torch.ones(6))
    state = {
        "whole": base,
        "part": base[:3],
        "other shape": base.view(2, 3),
        "other numbers": torch.view_as_real(base),
        "every second": base[::2],
        "conjugated": base.conj(),
        "negated": torch._neg_view(base),
        "again": base[:],
    }
    taken = state_tree.split_state(state)
    back = state_tree.join_state(taken.skeleton, taken.tensors)

    assert len(taken.tensors) == len(state) - 1
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_what_cannot_be_saved_is_named_with_its_place() -> None:
    with pytest.raises(errors.BadInput, match=r"state\['optimizer'\]\[1\] is builtins.object"):
        state_tree.split_state({"optimizer": [1, object()]})
    with pytest.raises(errors.BadInput, match=r"state\['x'\] is a torch.sparse_coo tensor"):
        state_tree.split_state({"x": torch.eye(2).to_sparse()})
    endless: dict[str, object] = {}
    endless["inner"] = [endless]
    with pytest.raises(errors.BadInput, match="a part of it contains itself"):
        state_tree.split_state(endless)
    with pytest.raises(errors.BadInput, match=r"on meta"):
        state_tree.split_state({"x": torch.empty(2, device="meta")})
