"""Pure. The ways to change an object by a patch: JSON patch, merge patch, strategic merge.

In: the object, the patch and its media type. Out: the changed object (nothing is changed in place).
"""

import copy
from typing import Any

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "containerStatuses": "",
    "initContainerStatuses": "",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "ports": "containerPort",
    "conditions": "type",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "podIPs": "ip",
    "addresses": "type",
    "taints": "key",
    "secrets": "name",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
}
"""By which key the items of a list are told apart in built-in objects; no key, or no entry: the list is replaced."""
WHOLE_SETS = ("finalizers",)
"""Lists of plain values that a strategic merge adds to."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects go deeper, anything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, field: str = "") -> Any:
    """Like `merge`, but lists of named items are merged item by item, with `$patch` and `$deleteFromPrimitiveList`."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if key.startswith("$deleteFromPrimitiveList/"):
                name = key.partition("/")[2]
                result[name] = [each for each in result.get(name, []) if each not in value]
            elif key.startswith("$setElementOrder/") or key == "$patch":
                continue
            elif value is None:
                result.pop(key, None)
            else:
                result[key] = strategic(result.get(key), value, key)
        return result
    if isinstance(patch, list):
        return _merge_lists(target if isinstance(target, list) else [], patch, field)
    return patch


def _merge_lists(target: list[Any], patch: list[Any], field: str) -> list[Any]:
    if field in WHOLE_SETS:
        return target + [each for each in patch if each not in target]
    key = LIST_KEYS.get(field)
    if field == "ports" and patch and isinstance(patch[0], dict) and "containerPort" not in patch[0]:
        key = "port"
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in patch):
        return [copy.deepcopy(each) for each in patch if "$patch" not in each]
    if not key:
        return copy.deepcopy(patch)
    result = list(target)
    for each in patch:
        if key not in each:
            raise status_errors.bad_request(f"map: {each} does not contain declared merge key: {key}")
        at = next((index for index, old in enumerate(result) if old.get(key) == each[key]), None)
        if each.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != each[key]]
        elif at is None:
            result.append(strategic({}, each, ""))
        else:
            result[at] = strategic(result[at], each, "")
    return result


def json_patch(target: Json, operations: Any) -> Json:
    """RFC 6902; a failed `test` or a path that is not there is refused with 422."""
    result: Any = copy.deepcopy(target)
    if not isinstance(operations, list):
        raise status_errors.bad_request("a JSON patch is a list of operations")
    for step in operations:
        try:
            result = _operate(result, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise status_errors.Refused(
                422, "Invalid", f"the server rejected our request due to an error in our request: {step}: {error}"
            ) from error
    assert isinstance(result, dict)
    return result


def _operate(root: Any, step: Json) -> Any:
    kind, path = step["op"], _pointer(step["path"])
    if kind == "test":
        if _read(root, path) != step["value"]:
            raise ValueError("testing value failed")
        return root
    if kind in ("move", "copy"):
        source = _pointer(step["from"])
        value = copy.deepcopy(_read(root, source))
        if kind == "move":
            _remove(root, source)
        return _add(root, path, value)
    if kind == "add":
        return _add(root, path, step["value"])
    if kind == "replace":
        _read(root, path)
        if path:
            _remove(root, path)
        return _add(root, path, step["value"])
    if kind == "remove":
        _remove(root, path)
        return root
    raise ValueError(f"unknown operation {kind!r}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"not a pointer: {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _read(root: Any, path: list[str]) -> Any:
    for part in path:
        root = root[int(part)] if isinstance(root, list) else root[part]
    return root


def _add(root: Any, path: list[str], value: Any) -> Any:
    if not path:
        return copy.deepcopy(value)
    parent = _read(root, path[:-1])
    if isinstance(parent, list):
        at = len(parent) if path[-1] == "-" else int(path[-1])
        if at > len(parent):
            raise IndexError(f"no place {at} in a list of {len(parent)}")
        parent.insert(at, copy.deepcopy(value))
    else:
        parent[path[-1]] = copy.deepcopy(value)
    return root


def _remove(root: Any, path: list[str]) -> None:
    parent = _read(root, path[:-1])
    if isinstance(parent, list):
        parent.pop(int(path[-1]))
    else:
        del parent[path[-1]]


def apply(target: Json, patch: Any, media: str, *, custom: bool) -> Json:
    """The object after a patch of any of the three kinds."""
    if media == JSON:
        return json_patch(target, patch)
    if not isinstance(patch, dict):
        raise status_errors.bad_request("a merge patch is an object")
    if media == STRATEGIC and not custom:
        result = strategic(target, patch)
    elif media == MERGE:
        result = merge(target, patch)
    else:
        raise status_errors.unsupported(media)
    assert isinstance(result, dict)
    return result
