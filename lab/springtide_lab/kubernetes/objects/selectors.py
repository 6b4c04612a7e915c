"""Pure. Label and field selectors: text in, a test of labels or the name of an object out."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from springtide_lab.kubernetes.api import status_errors

Test = Callable[[Mapping[str, str]], bool]
_PARTS = re.compile(r",(?![^(]*\))")
_SETS = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")


def by_labels(text: str) -> Test:
    """A test of labels from `a=b,c!=d,e in (f,g),h,!i`."""
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
    """A test of labels from `matchLabels`; an empty selector takes all, none takes nothing."""
    if selector is None:
        return lambda _: False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return lambda labels: all(labels.get(key) == value for key, value in wanted.items())


def chosen_name(fields: str) -> str:
    """The one object that a list or a watch asks for by `metadata.name=NAME`: no other field can be selected by."""
    if not fields:
        return ""
    found = re.fullmatch(r"metadata\.name==?([^!=,]+)", fields.strip())
    if found is None:
        raise status_errors.bad_request(f"field label not supported: {fields}")
    return found[1]
