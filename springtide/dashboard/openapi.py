"""Describes the API in OpenAPI 3.1, from the table of endpoints and the types of their documents."""

from typing import Any

import msgspec

from springtide import __version__
from springtide.dashboard.documents import ApiError, LiveUpdate
from springtide.dashboard.endpoints import ENDPOINTS, Endpoint

TEMPLATE = "#/components/schemas/{name}"


def description() -> dict[str, Any]:
    kinds: list[type] = [ApiError, LiveUpdate]
    for endpoint in ENDPOINTS:
        kinds += [endpoint.answer] if endpoint.body is None else [endpoint.answer, endpoint.body]
    schemas, components = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=TEMPLATE)
    of_kind = dict(zip(dict.fromkeys(kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, of_kind)
    paths["/api/jobs/{job}/live"] = {"get": _live(of_kind)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Springtide dashboard", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, of_kind: dict[type, Any]) -> dict[str, Any]:
    parameters = [_job_parameter()] if "{job}" in endpoint.path else []
    for name, (kind, meaning) in endpoint.query.items():
        parameters.append({"name": name, "in": "query", "description": meaning, "schema": msgspec.json.schema(kind)})
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": endpoint.summary, "content": _json(of_kind[endpoint.answer])},
            "default": {"description": "Why the request failed.", "content": _json(of_kind[ApiError])},
        },
    }
    if parameters:
        found["parameters"] = parameters
    if endpoint.body is not None:
        found["requestBody"] = {"content": _json(of_kind[endpoint.body])}
    return found


def _live(of_kind: dict[type, Any]) -> dict[str, Any]:
    return {
        "summary": "Changes of a job as server-sent events, one a second; the data of each is a LiveUpdate.",
        "parameters": [_job_parameter()],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": of_kind[LiveUpdate]}}}
        },
    }


def _job_parameter() -> dict[str, Any]:
    return {"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
