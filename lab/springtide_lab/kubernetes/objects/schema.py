"""Pure. Apply structural schemas of custom kinds: prune unknown fields, fill in defaults, validate values.

In: an OpenAPI v3 schema and an object. Out: the object as the server stores it, and its faults, one line each:
`spec.workers: Invalid value: ...`. Rules in CEL (`x-kubernetes-validations`) are stored, but not evaluated.
"""

import copy
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
KEPT_AT_ROOT = ("apiVersion", "kind", "metadata")
KEYWORDS = {
    *(
        "type",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "default",
        "nullable",
        "description",
        "format",
    ),
    *("enum", "minimum", "maximum", "maxLength", "maxItems", "maxProperties", "x-kubernetes-validations"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}


def prune(value: Any, schema: Schema, *, root: bool = False) -> Any:
    keeps_all = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(value, dict):
        named, other = schema.get("properties", {}), schema.get("additionalProperties")
        kept = {}
        for key, each in value.items():
            if root and key in KEPT_AT_ROOT:
                kept[key] = each
            elif key in named:
                kept[key] = prune(each, named[key])
            elif isinstance(other, dict):
                kept[key] = prune(each, other)
            elif other is True or keeps_all:
                kept[key] = each
        return kept
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(each, schema["items"]) for each in value]
    return value


def fill(value: Any, schema: Schema) -> Any:
    """Return the value with defaults for missing fields, and for null fields that are not nullable."""
    if isinstance(value, dict):
        filled = dict(value)
        for key, each in schema.get("properties", {}).items():
            if "default" in each and (key not in filled or (filled[key] is None and not each.get("nullable"))):
                filled[key] = copy.deepcopy(each["default"])
            if key in filled:
                filled[key] = fill(filled[key], each)
        other = schema.get("additionalProperties")
        if isinstance(other, dict):
            for key in filled.keys() - schema.get("properties", {}).keys():
                filled[key] = fill(filled[key], other)
        return filled
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [fill(each, schema["items"]) for each in value]
    return value


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    if value is None and (schema.get("nullable") or not schema.get("type")):
        return
    if not _is_type(value, schema):
        wanted = "integer or string" if schema.get("x-kubernetes-int-or-string") else schema["type"]
        yield f"{path}: Invalid value: {value!r}: {path} in body must be of type {wanted}"
        return
    yield from _values(value, schema, path)
    if isinstance(value, dict):
        for key in schema.get("required", []):
            if key not in value:
                yield f"{_join(path, key)}: Required value"
        named, other = schema.get("properties", {}), schema.get("additionalProperties")
        for key, each in value.items():
            if key in named:
                yield from faults(each, named[key], _join(path, key))
            elif isinstance(other, dict):
                yield from faults(each, other, f"{path}[{key}]" if path else key)
    if isinstance(value, list):
        yield from _list(value, schema, path)


def _values(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: Unsupported value: {value!r}: supported values: {schema['enum']}"
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield f"{path}: Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{path}: Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    for kind, key in ((dict, "maxProperties"), (list, "maxItems")):
        if isinstance(value, kind) and len(value) > schema.get(key, len(value)):
            yield f"{path}: Too many: {len(value)}: must have at most {schema[key]} items"


def _list(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    seen: list[Any] = []
    for index, each in enumerate(value):
        yield from faults(each, schema["items"], f"{path}[{index}]")
        if schema.get("x-kubernetes-list-type") == "map" and isinstance(each, dict):
            identity = {key: each.get(key) for key in schema["x-kubernetes-list-map-keys"]}
            if identity in seen:
                yield f"{path}[{index}]: Duplicate value: {identity}"
            seen.append(identity)


def misshapen(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield why a schema is not structural: a node lacks its type, or has `properties` and `additionalProperties`."""
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not free:
        yield f"{path}.type: Required value: must not be empty for specified object fields"
    if unknown := sorted(schema.keys() - KEYWORDS):
        yield f"{path}: Forbidden: this server does not check {unknown}"
    if schema.get("properties") and schema.get("additionalProperties"):
        yield f"{path}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"
    if "default" in schema:
        yield from faults(schema["default"], schema, f"{path}.default")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield f"{path}.items: Required value: must be specified"
    for name, each in schema.get("properties", {}).items():
        yield from misshapen(each, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from misshapen(schema[key], f"{path}.{key}")


TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
}


def _is_type(value: Any, schema: Schema) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, int | str) and not isinstance(value, bool)
    wanted = schema.get("type")
    if wanted is None:
        return True
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
