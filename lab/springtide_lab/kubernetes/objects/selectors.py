"""Pure. Parse label and field selectors: from text to a test of labels or the name of an object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from springtide_lab.kubernetes.api import status_errors

Test = Callable[[Mapping[str, str]], bool]
_PARTS = re.compile(r",(?![^(]*\))")
_SETS = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")


def by_labels(text: str) -> Test:
    """Return a test of labels for a selector such as `a=b,c!=d,e in (f,g),h,!i`."""
    tests = [_one_label(part.strip()) for part in _PARTS.split(text) if part.strip()]
    return lambda labels: all(test(labels) for test in tests)


def _one_label(part: str) -> Test:
    if found := _SETS.match(part):
        key, operator, listed = found[1], found[2], {each.strip() for each in found[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in listed
        return lambda labels: labels.get(key) not in listed
    for sign in ("!=", "==", "="):
        if sign in part:
            key, value = (each.strip() for each in part.split(sign, 1))
            if sign == "!=":
                return lambda labels: labels.get(key) != value
            return lambda labels: labels.get(key) == value
    if part.startswith("!"):
        return lambda labels: part[1:].strip() not in labels
    if not re.fullmatch(r"[\w./-]+", part):
        raise status_errors.bad_request(f"unable to parse requirement: {part!r}")
    return lambda labels: part in labels


def by_structure(selector: Mapping[str, Any] | None) -> Test:
    """Return a test of labels for `matchLabels`; an empty selector matches all objects, None matches nothing."""
    if selector is None:
        return lambda _: False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return lambda labels: all(labels.get(key) == value for key, value in wanted.items())


def chosen_name(fields: str) -> str:
    """Return the name in the field selector `metadata.name=NAME` of a list or watch; refuse other fields."""
    if not fields:
        return ""
    found = re.fullmatch(r"metadata\.name==?([^!=,]+)", fields.strip())
    if found is None:
        raise status_errors.bad_request(f"field label not supported: {fields}")
    return found[1]
