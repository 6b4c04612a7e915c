"""Write dashboard/src/types.ts, the TypeScript of the API's documents. A test fails when the file is behind."""

import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).parent.parent / "dashboard" / "src" / "types.ts"
PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}


def text() -> str:
    from springtide.dashboard import openapi

    schemas = openapi.description()["components"]["schemas"]
    parts = ["/* Written by tools/dashboard_types.py from springtide/dashboard/documents.py. */\n"]
    for name, schema in sorted(schemas.items()):
        if "enum" in schema:
            parts.append(f"export type {name} = {' | '.join(map(quoted, schema['enum']))};\n")
        elif schema.get("type") == "object":
            parts.append(f"export interface {name} {{\n{''.join(fields(schema))}}}\n")
        else:
            parts.append(f"export type {name} = {kind(schema)};\n")
    return "\n".join(parts)


def fields(schema: dict[str, Any]) -> list[str]:
    required = set(schema.get("required", ()))
    return [
        f"  {name}{'' if name in required else '?'}: {kind(part)};\n"
        for name, part in schema.get("properties", {}).items()
        if name != "type"
    ]


def kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(kind, schema["anyOf"])))
    if "enum" in schema:
        return " | ".join(map(quoted, schema["enum"]))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(kind, schema['prefixItems']))}]"
        case "array":
            items = schema.get("items", {})
            return f"({kind(items)})[]" if "anyOf" in items else f"{kind(items)}[]"
        case "object":
            inner = schema.get("additionalProperties", {})
            return f"Record<string, {kind(inner) if isinstance(inner, dict) else 'unknown'}>"
        case str(name):
            return PLAIN[name]
    return "unknown"


def quoted(value: Any) -> str:
    return f'"{value}"'


if __name__ == "__main__":
    PAGE.write_text(text())
