"""Pure. Server-side apply: what a manager has written down becomes so, what it no longer writes down goes.

In: the object, the manager's wish and whether it may take from others. Out: the changed object, its `managedFields`
brought up to date; or 409 with who owns what. Only managers that apply are kept account of: what an update or another
patch changes is owned by nobody, and so never in conflict (a real server counts those too).
"""

import copy
from collections.abc import Iterator
from typing import Any

from springtide_lab.kubernetes.api import status_errors
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects import patches

UNOWNED = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
Path = tuple[str, ...]


def apply(target: Json, wish: Json, manager: str, *, force: bool, at: str, key_of: dict[str, str]) -> Json:
    """The object after an apply. `key_of` says by what the items of a list are told apart, by the list's name."""
    owned = _owned(target)
    wanted = set(_leaves(wish, key_of)) - UNOWNED
    conflicts = [
        (other, "." + ".".join(path))
        for other, paths in owned.items()
        if other != manager
        for path in sorted(paths & wanted)
        if _read(target, path, key_of) != _read(wish, path, key_of)
    ]
    if conflicts and not force:
        raise status_errors.apply_conflict(conflicts)
    taken = {path.removeprefix(".") for _, path in conflicts}
    result = copy.deepcopy(target)
    kept_by_others = set[Path]().union(*(paths for other, paths in owned.items() if other != manager))
    for path in sorted(_given_up(owned.get(manager, set()) - wanted, wanted | kept_by_others), key=len, reverse=True):
        _drop(result, path, key_of)
    result = {**_merge(result, wish, "", key_of)}
    owned = {other: {path for path in paths if ".".join(path) not in taken} for other, paths in owned.items()}
    owned[manager] = wanted
    result.setdefault("metadata", {})["managedFields"] = [
        {
            "manager": each,
            "operation": "Apply",
            "apiVersion": wish.get("apiVersion", ""),
            "time": at,
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(paths),
        }
        for each, paths in owned.items()
        if paths
    ]
    return result


def _given_up(paths: set[Path], kept: set[Path]) -> set[Path]:
    """What must go: leaves that nobody wants, and whole items of lists of which nobody wants anything."""
    found = set()
    for path in paths - kept:
        for length in range(1, len(path)):
            if "=" in path[length - 1] and not any(each[:length] == path[:length] for each in kept):
                path = path[:length]
                break
        found.add(path)
    return found


def _leaves(value: Any, key_of: dict[str, str], path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, key_of, (*path, key))
    elif isinstance(value, list) and (key := key_of.get(path[-1] if path else "", "")):
        for each in value:
            yield from _leaves(each, key_of, (*path, f"{key}={each.get(key)}"))
    else:
        yield path


def _merge(target: Any, wish: Any, field: str, key_of: dict[str, str]) -> Any:
    if isinstance(wish, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in wish.items():
            result[key] = _merge(result.get(key), value, key, key_of)
        return result
    key = key_of.get(field, "")
    if isinstance(wish, list) and key:
        result_list = list(target) if isinstance(target, list) else []
        for each in wish:
            at = next((index for index, old in enumerate(result_list) if old.get(key) == each.get(key)), None)
            if at is None:
                result_list.append(copy.deepcopy(each))
            else:
                result_list[at] = _merge(result_list[at], each, "", key_of)
        return result_list
    return copy.deepcopy(wish)


def _step(value: Any, part: str) -> Any:
    if isinstance(value, list):
        key, _, wanted = part.partition("=")
        return next((each for each in value if str(each.get(key)) == wanted), None)
    return value.get(part) if isinstance(value, dict) else None


def _read(value: Any, path: Path, key_of: dict[str, str]) -> Any:
    for part in path:
        value = _step(value, part)
    return value


def _drop(root: Any, path: Path, key_of: dict[str, str]) -> None:
    parent = _read(root, path[:-1], key_of)
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
        if not parent and len(path) > 1:
            _drop(root, path[:-1], key_of)
    elif isinstance(parent, list):
        key, _, wanted = path[-1].partition("=")
        parent[:] = [each for each in parent if str(each.get(key)) != wanted]
    if isinstance(parent, list) and len(path) > 1 and not parent:
        _drop(root, path[:-1], key_of)


def _tree(paths: set[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths):
        node = root
        for part in path:
            node = node.setdefault(f"f:{part}", {})
    return root


def _owned(item: Json) -> dict[str, set[Path]]:
    def paths(node: Json, path: Path) -> Iterator[Path]:
        for key, each in node.items():
            inner = (*path, key.removeprefix("f:"))
            if each:
                yield from paths(each, inner)
            else:
                yield inner

    return {
        entry["manager"]: set(paths(entry["fieldsV1"], ()))
        for entry in item.get("metadata", {}).get("managedFields", [])
        if entry.get("operation") == "Apply"
    }


def key_names(custom: bool, schema: Json | None) -> dict[str, str]:
    """By what list items are told apart: the built-in table, or `x-kubernetes-list-map-keys` of a custom kind."""
    if not custom:
        return {name: key for name, key in patches.LIST_KEYS.items() if key}
    found: dict[str, str] = {"ownerReferences": "uid"}

    def look(node: Json, name: str) -> None:
        if node.get("x-kubernetes-list-type") == "map":
            found[name] = node["x-kubernetes-list-map-keys"][0]
        for key, each in node.get("properties", {}).items():
            look(each, key)
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                look(node[key], "")

    look(schema or {}, "")
    return found
