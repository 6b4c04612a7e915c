"""Split arguments into leaves and rebuild them."""

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from springtide.dataworker.split.recorder import pytree
from springtide.domain.data.samples import Batch


@dataclasses.dataclass(frozen=True)
class Click:
    ids: torch.Tensor
    words: list[str]


def test_leaves_are_ordered_left_to_right_and_a_string_list_is_one_leaf():
    ids, dense, words = torch.arange(3), torch.ones(3, 2), ["a", "b", "c"]
    tree = ((Batch({"ids": ids, "dense": dense}, None), Click(ids, words)), {"scale": 0.5})
    found, shape = pytree.flatten(tree)
    assert [id(one) for one in found[:2]] == [id(ids), id(dense)]
    assert found[2:] == [None, ids, words, 0.5]
    again = shape.rebuild(found)
    assert again[0][1].words is words and isinstance(again[0][0], Batch) and again[1] == {"scale": 0.5}


def test_tree_shape_rebuilds_after_pickling():
    tree = (Batch([1, (2, 3)], {"a": {}, "b": []}), Click(4, ["x"]))
    found, shape = pytree.flatten(tree)
    assert pickle.loads(pickle.dumps(shape)) == shape
    assert pickle.loads(pickle.dumps(shape)).rebuild(found) == tree


def test_wrong_number_of_leaves_is_refused():
    found, shape = pytree.flatten([1, 2])
    with pytest.raises(ValueError, match="too many"):
        shape.rebuild([*found, 3])
    with pytest.raises((StopIteration, RuntimeError)):
        shape.rebuild(found[:1])


trees = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner, inner)
    ),
)


@given(trees)
def test_any_tree_is_rebuilt_unchanged(tree):
    found, shape = pytree.flatten(tree)
    assert shape.rebuild(found) == tree
    assert pytree.flatten(shape.rebuild(found))[1] == shape
