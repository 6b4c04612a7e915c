"""Pure. The schema of a dataclass as a cluster checks it: names, types and words come from `domain.spec.schema`.

In: the classes of `domain.spec.elastic_job` and `domain.plan.scale_plan`. Out: OpenAPI v3, structural. Everything has a
longest length, because the API server counts beforehand what its rules (CEL) could cost. Next: `crds`.
"""

import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from springtide.domain.spec import schema as spelling
from springtide.platforms.k8s.api.kinds import Object

TEXT, ITEMS, NAMES = 4096, 2048, 2048
EITHER = {"memory", "data_workers"}
"""Text where people also write a plain number."""

Rules = Mapping[type, list[Object]]


def rule(condition: str, message: str, *, at: str = "") -> Object:
    """Something that must be true of an object; `oldSelf` in it makes it a rule about changes."""
    return {"rule": condition, "message": message} | ({"fieldPath": at} if at else {})


def schema_of(
    kind: Any, *, rules: Rules | None = None, least: Mapping[str, int] | None = None, without: tuple[str, ...] = ()
) -> Object:
    """Of a dataclass or any type that its fields have. `rules` by class, `least` by name of a field in any of them."""
    if is_dataclass(kind) and isinstance(kind, type):
        return _object(kind, rules or {}, least or {}, without)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(inner)}
    if origin is tuple:
        return {"type": "array", "maxItems": ITEMS, "items": schema_of(inner[0], rules=rules, least=least)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if inner[1] is Any:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        value = schema_of(inner[1], rules=rules, least=least)
        return {"type": "object", "maxProperties": NAMES, "additionalProperties": value}
    if kind is Any:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return dict(_SCALARS[kind])


_SCALARS: dict[Any, Object] = {
    str: {"type": "string", "maxLength": TEXT},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}


def _object(kind: type, rules: Rules, least: Mapping[str, int], without: tuple[str, ...]) -> Object:
    properties, required = {}, []
    for field in spelling.fields_of(kind):
        if field.name in without:
            continue
        found = schema_of(field.kind, rules=rules, least=least)
        if field.name in EITHER and field.kind is str:
            found = {"x-kubernetes-int-or-string": True}
        if field.name in least and found.get("type") in ("integer", "number"):
            found["minimum"] = least[field.name]
        if field.words:
            found["description"] = field.words
        properties[field.key] = found
        if field.required:
            required.append(field.key)
    schema: Object = {"type": "object", "properties": properties}
    if kind.__doc__:
        schema["description"] = kind.__doc__
    if required:
        schema["required"] = required
    if kind in rules:
        schema["x-kubernetes-validations"] = list(rules[kind])
    return schema
