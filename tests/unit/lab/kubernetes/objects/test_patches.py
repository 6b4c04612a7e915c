"""Patches of every kind."""

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from springtide_lab.kubernetes.api.status_errors import Refused
from springtide_lab.kubernetes.objects import patches


def test_strategic_patch_merges_lists_by_key():
    pod = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "args": [1]}}
    patch = {"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "c"}]}}
    merged = patches.merge(pod, patch, strategic=True)
    assert merged["spec"]["containers"] == [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}]
    assert patches.merge({"args": [1]}, {"args": [2]}, strategic=True) == {"args": [2]}
    with pytest.raises(Refused, match="merge key"):
        patches.merge(pod, {"spec": {"containers": [{"image": "2"}]}}, strategic=True)


JSON = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=3,
)
OBJECT = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@settings(max_examples=25)
@given(OBJECT, OBJECT)
def test_merge_patch_is_idempotent_and_changes_nothing_in_place(target, patch):
    before = copy.deepcopy(target)
    once = patches.merge(target, patch)
    assert target == before and patches.merge(once, patch) == once
