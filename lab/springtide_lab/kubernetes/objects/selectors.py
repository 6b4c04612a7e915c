"""Pure. Label and field selectors (text in, a test of objects out), and quantities such as `500m` and `2Gi`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import Kind

_TEXT = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
SCALE = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


def number(quantity: object) -> float:
    found = _TEXT.fullmatch(str(quantity).strip())
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    if found[2]:
        return float(found[1]) * 10.0 ** int(found[2])
    return float(found[1]) * SCALE[found[3] or ""]


def is_quantity(quantity: object) -> bool:
    try:
        number(quantity)
    except ValueError:
        return False
    return True


Test = Callable[[Json], bool]
_PARTS = re.compile(r",(?![^(]*\))")
_SETS = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")


def by_labels(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A test of labels from `a=b,c!=d,e in (f,g),h,!i`."""
    tests = [_one_label(part.strip()) for part in _PARTS.split(text) if part.strip()]
    return lambda labels: all(test(labels) for test in tests)


def _one_label(part: str) -> Callable[[Mapping[str, str]], bool]:
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


def by_structure(selector: Mapping[str, Any] | None) -> Callable[[Mapping[str, str]], bool]:
    """A test of labels from `matchLabels` and `matchExpressions`; an empty selector takes all, none takes nothing."""
    if selector is None:
        return lambda _: False
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    rules: list[Mapping[str, Any]] = list(selector.get("matchExpressions") or [])

    def fits(labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            meets(rule, labels) for rule in rules
        )

    return fits


def meets(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether labels meet one of `matchExpressions`; nodes are chosen by Gt and Lt too."""
    key, values = rule["key"], rule.get("values") or []
    match rule["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
        case _:
            return key not in labels


def at_path(item: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.strip(".").split("."):
        if not isinstance(item, dict):
            return None
        item = item.get(part)
    return item


def by_fields(kind: Kind, text: str) -> Test:
    """A test of objects from `metadata.name=a,status.phase!=Failed`; 400 for a field that cannot be selected by."""
    tests: list[Test] = []
    known = {"metadata.name", "metadata.namespace", *kind.fields}
    for part in filter(None, (each.strip() for each in text.split(","))):
        sign = "!=" if "!=" in part else "==" if "==" in part else "="
        path, found, value = (each.strip() for each in part.partition(sign))
        if not found:
            raise status_errors.bad_request(f"invalid selector: {part!r}; can't understand it")
        if path not in known:
            raise status_errors.bad_request(f"field label not supported: {path}")
        tests.append(_one_field(path, value, equal=sign != "!="))
    return lambda item: all(test(item) for test in tests)


def _one_field(path: str, value: str, *, equal: bool) -> Test:
    def fits(item: Json) -> bool:
        found = at_path(item, path)
        if isinstance(found, bool):
            found = str(found).lower()
        return ("" if found is None else str(found)) == value

    return fits if equal else lambda item: not fits(item)


def choose(kind: Kind, labels: str, fields: str) -> Test:
    label_test, field_test = by_labels(labels), by_fields(kind, fields)
    return lambda item: label_test(item["metadata"].get("labels") or {}) and field_test(item)
