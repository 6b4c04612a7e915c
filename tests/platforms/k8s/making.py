"""Objects for the tests of this folder."""

import contextlib
import secrets
from functools import partial
from typing import Any

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import DEFINITIONS, ELASTIC_JOBS, SCALE_PLANS, ObjectKind
from springtide.platforms.k8s.objects import crds
from tests import waiting

Object = dict[str, Any]


def pod(name: str, *command: str, **spec: Any) -> Object:
    """A pod of one container that only LocalKubelet runs."""
    container = {"name": "main", "image": "springtide:test", "command": list(command or ("true",))}
    body: Object = {"restartPolicy": "Never", "schedulerName": "springtide-local", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**body, **spec}}


async def define_ours(client: Client) -> None:
    """ElasticJob and ScalePlan, until the server knows them."""
    for definition in crds.all_definitions():
        with contextlib.suppress(errors.AlreadyThere):
            await client.create(DEFINITIONS, definition)
    for kind in (SCALE_PLANS, ELASTIC_JOBS):
        await waiting.soon(partial(client.has, kind), kind.plural)


def widgets() -> tuple[Object, ObjectKind]:
    """The definition of a kind of its own, and that kind."""
    group = f"t{secrets.token_hex(3)}.springtide.dev"
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "memory": {"x-kubernetes-int-or-string": True},
            "parts": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}},
            },
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            column,
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    body = DEFINITIONS.body(
        f"widgets.{group}", spec={"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    )
    return body, ObjectKind(f"{group}/v1", "Widget", "widgets")
