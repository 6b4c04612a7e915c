"""Pure. Structural schemas of custom kinds: unknown fields cut off, defaults filled in, the rest validated.

In: an OpenAPI v3 schema and an object. Out: the object as the server keeps it, and what is wrong with it, a line a
fault: `spec.workers: Invalid value: ...`. Rules in CEL (`x-kubernetes-validations`) are kept, not evaluated.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
KEPT_AT_ROOT = ("apiVersion", "kind", "metadata")


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
    """With the defaults of fields that are missing, or null where null is not allowed."""
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
        found = _type_of(value)
        yield f'{path}: Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
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
        listed = ", ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in schema["enum"])
        yield f"{path}: Unsupported value: {_show(value)}: supported values: {listed}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: Invalid value: {_show(value)}: {path} in body should match '{schema['pattern']}'"
        if len(value) < schema.get("minLength", 0):
            at_least = schema["minLength"]
            yield f"{path}: Invalid value: {_show(value)}: {path} in body should be at least {at_least} chars long"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
            than = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
            yield f"{path}: Invalid value: {value}: {path} in body should be {than} {low}"
        if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
            than = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
            yield f"{path}: Invalid value: {value}: {path} in body should be {than} {high}"
        if schema.get("multipleOf") and value % schema["multipleOf"]:
            yield f"{path}: Invalid value: {value}: {path} in body should be a multiple of {schema['multipleOf']}"
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxProperties']} items"
    if isinstance(value, dict) and len(value) < schema.get("minProperties", 0):
        yield f"{path}: Invalid value: {path} in body should have at least {schema['minProperties']} properties"
    yield from _combined(value, schema, path)


def _combined(value: Any, schema: Schema, path: str) -> Iterator[str]:
    for each in schema.get("allOf", []):
        yield from faults(value, each, path)
    fitting = [each for each in schema.get("anyOf", []) if not any(faults(value, each, path))]
    if schema.get("anyOf") and not fitting:
        yield f"{path}: Invalid value: {_show(value)}: {path} in body must validate at least one schema (anyOf)"
    fitting = [each for each in schema.get("oneOf", []) if not any(faults(value, each, path))]
    if schema.get("oneOf") and len(fitting) != 1:
        found = "none" if not fitting else str(len(fitting))
        wanted = f"must validate one and only one schema (oneOf). Found {found} valid"
        yield f"{path}: Invalid value: {_show(value)}: {path} in body {wanted}"
    if "not" in schema and not any(faults(value, schema["not"], path)):
        yield f"{path}: Invalid value: {_show(value)}: {path} in body must not validate the schema (not)"


def _list(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{path}: Invalid value: {len(value)}: {path} in body should have at least {schema['minItems']} items"
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
    kind, seen = schema.get("x-kubernetes-list-type"), list[Any]()
    for index, each in enumerate(value):
        if isinstance(schema.get("items"), dict):
            yield from faults(each, schema["items"], f"{path}[{index}]")
        if kind in ("set", "map") or schema.get("uniqueItems"):
            keys = schema.get("x-kubernetes-list-map-keys", [])
            identity = {key: each.get(key) for key in keys} if kind == "map" and isinstance(each, dict) else each
            if identity in seen:
                yield f"{path}[{index}]: Duplicate value: {_show(identity)}"
            seen.append(identity)


def misshapen(schema: Schema, path: str = "spec.validation.openAPIV3Schema") -> Iterator[str]:
    """Why a schema is not structural: every node says its type, and `additionalProperties` stands alone."""
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not free:
        yield f"{path}.type: Required value: must not be empty for specified object fields"
    if "$ref" in schema:
        yield f"{path}.$ref: Forbidden: $ref is not supported"
    if schema.get("properties") and schema.get("additionalProperties"):
        yield f"{path}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"
    if schema.get("uniqueItems"):
        yield f"{path}.uniqueItems: Forbidden: uniqueItems cannot be set to true"
    if "default" in schema and (wrong := list(faults(schema["default"], schema, f"{path}.default"))):
        yield from wrong
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield f"{path}.items: Required value: must be specified"
    for name, each in schema.get("properties", {}).items():
        yield from misshapen(each, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from misshapen(schema[key], f"{path}.{key}")


def _is_type(value: Any, schema: Schema) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, int | str) and not isinstance(value, bool)
    match schema.get("type"):
        case None:
            return True
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return False


def _type_of(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
