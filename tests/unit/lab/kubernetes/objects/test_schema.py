"""Structural schemas: pruning, defaults, and faults with their path."""

import hypothesis.strategies as st
from hypothesis import given

from springtide_lab.kubernetes.objects import schema

SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1},
        "colour": {"type": "string", "default": "red", "enum": ["red", "blue"]},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "named": {"type": "object", "additionalProperties": {"type": "integer"}},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "n": {"type": "integer", "default": 1}},
            },
        },
        "memory": {"x-kubernetes-int-or-string": True},
    },
}


def test_unknown_fields_are_pruned_and_defaults_filled_at_every_depth():
    given_ = {"size": 1, "odd": 1, "free": {"x": {"y": 1}}, "named": {"a": 1}, "parts": [{"name": "p", "odd": 2}]}
    kept = schema.fill(schema.prune(given_, SPEC), SPEC)
    assert kept == {
        "size": 1,
        "colour": "red",
        "free": {"x": {"y": 1}},
        "named": {"a": 1},
        "parts": [{"name": "p", "n": 1}],
    }


def test_schema_faults_name_their_path():
    wrong = {"size": 0, "colour": "green", "named": {"a": "x"}, "parts": [{"name": "p"}, {"name": "p"}], "memory": 1.5}
    places = [fault.partition(": ")[0] for fault in schema.faults(wrong, SPEC)]
    assert places == ["size", "colour", "named[a]", "parts[1]", "memory"]
    assert list(schema.faults({}, SPEC)) == ["size: Required value"]


def test_non_structural_schema_is_refused():
    assert not list(schema.misshapen(SPEC))
    for bad in (
        {},
        {"type": "array"},
        {"type": "integer", "default": "x"},
        {"type": "object", "properties": {"a": {}}},
    ):
        assert list(schema.misshapen(bad)), bad


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "parts", "x", "name"]), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_pruning_and_filling_is_idempotent(value):
    once = schema.fill(schema.prune(value, SPEC), SPEC)
    assert schema.fill(schema.prune(once, SPEC), SPEC) == once
