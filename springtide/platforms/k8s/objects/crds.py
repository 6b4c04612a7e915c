"""Pure. Custom resource definitions: ElasticJob, which users write, and ScalePlan, which requests pods.

The cluster rejects invalid objects, and edits that a running job cannot apply.
"""

import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from springtide.domain.plan.scale_plan import PlanStatus, ScalePlan
from springtide.domain.spec import schema as spec_schema
from springtide.domain.spec.elastic_job import ElasticJob, RoleWish
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names

TEXT, ITEMS, NAMES = 4096, 2048, 2048
EITHER = {"memory", "data_workers"}
"""Text fields that also accept a plain number."""

Rules = Mapping[type, list[Object]]

_SCALARS: dict[Any, Object] = {
    str: {"type": "string", "maxLength": TEXT},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
FIXED = ("script", "arguments", "sync", "slots", "seed", "recovery")
"""Fields that identify a job and cannot change. Edits of all other fields apply to the running job."""
LEAST = {"count": 1, "min": 1, "max": 1, "rank": 0, "incarnation": 0, "relaunches": 0, "grace_s": 0, "keep_s": 0}
CONDITIONS: Object = {
    "type": "array",
    "description": "Conditions: Accepted, MasterRunning, PodsRunning by the operator, others by the master.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": {"type": "string"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string"},
            "message": {"type": "string"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    },
}


def rule(condition: str, message: str) -> Object:
    return {"rule": condition, "message": message}


def schema_of(
    kind: Any, *, rules: Rules | None = None, least: Mapping[str, int] | None = None, without: tuple[str, ...] = ()
) -> Object:
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


def _object(kind: type, rules: Rules, least: Mapping[str, int], without: tuple[str, ...]) -> Object:
    properties, required = {}, []
    for field in spec_schema.fields_of(kind):
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


def unchanged(field: str) -> Object:
    same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return rule(same, f"{field} cannot change; submit a new job with another {field}")


JOB_RULES: Rules = {
    RoleWish: [
        rule(
            "!has(self.count) || (!has(self.min) && !has(self.max))",
            "count beside min or max: give the number, or bounds for planning",
        ),
        rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be above max"),
        unchanged("gpu"),
    ],
    ElasticJob: [
        *(unchanged(field) for field in FIXED),
        rule(
            "!has(oldSelf.stopped) || !oldSelf.stopped || (has(self.stopped) && self.stopped)",
            "a stopped job cannot start again; submit another one with `resume`",
        ),
    ],
}

PLAN_RULES: Rules = {
    ScalePlan: [
        rule("self.job == oldSelf.job", "job cannot change"),
        rule(
            "has(self.origin) && self.origin == 'master' || !has(self.pods) && !has(self.kill)",
            "pods and kill are for masters; give workers, servers or dataWorkers",
        ),
    ]
}

NAME_RULES = [
    rule(
        f"self.metadata.name.size() <= {names.LONGEST_JOB}",
        f"the name has more than {names.LONGEST_JOB} letters: names of its pods would be too long",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name of a job is also the name of a service: use lower-case letters, digits and -, beginning with a "
        "letter",
    ),
]

OWN_NAME = rule(
    "!has(self.spec.origin) || self.spec.origin != 'master' || self.metadata.name == self.spec.job",
    "a master's plan is named like its job",
)


def elastic_jobs() -> Object:
    spec = schema_of(ElasticJob, rules=JOB_RULES, least=LEAST, without=("name",))
    columns = [
        _column("Phase", "string", ".status.phase", "Phase of the job."),
        _column("Workers", "string", ".status.workers", "Running and wanted."),
        _column("Servers", "string", ".status.servers", "Running and wanted."),
        _column("Samples", "integer", ".status.samples", "Trained so far."),
        _column("Rate", "number", ".status.samplesPerSecond", "Samples a second."),
        _column("Loss", "number", ".status.loss", "Of late.", wide=True),
        _column("Decision", "string", ".status.decision", "Last plan, and its reason.", wide=True),
        _column("Message", "string", ".status.message", "Message for operators.", wide=True),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since submission."),
    ]
    return _definition(kinds.ELASTIC_JOBS, "ej", spec, JOB_STATUS, columns, NAME_RULES, ElasticJob.__doc__ or "")


def scale_plans() -> Object:
    spec = schema_of(ScalePlan, rules=PLAN_RULES, least=LEAST | {"workers": 1, "servers": 1, "data_workers": 0})
    status = schema_of(PlanStatus) | {"x-kubernetes-preserve-unknown-fields": True}
    columns = [
        _column("Job", "string", ".spec.job", "Whose pods."),
        _column("Origin", "string", ".spec.origin", "Author of the plan: the job's master, or a user."),
        _column("Phase", "string", ".status.phase", "Outcome of the plan."),
        _column("Message", "string", ".status.message", "Why."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
    ]
    return _definition(kinds.SCALE_PLANS, "sp", spec, status, columns, [OWN_NAME], ScalePlan.__doc__ or "")


def all_definitions() -> list[Object]:
    return [elastic_jobs(), scale_plans()]


def _definition(
    kind: kinds.ObjectKind,
    short: str,
    spec: Object,
    status: Object,
    columns: list[Object],
    rules: list[Object],
    words: str,
) -> Object:
    schema = {
        "type": "object",
        "description": words,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": rules,
    }
    version = {
        "name": kinds.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    named = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": [short],
        "categories": ["springtide"],
    }
    body = kinds.DEFINITIONS.body(f"{kind.plural}.{kinds.GROUP}")
    body["metadata"]["labels"] = {"app.kubernetes.io/name": "springtide"}
    return body | {"spec": {"group": kinds.GROUP, "scope": "Namespaced", "names": named, "versions": [version]}}


def _column(name: str, kind: str, path: str, words: str, *, wide: bool = False) -> Object:
    column = {"name": name, "type": kind, "jsonPath": path, "description": words}
    return column | ({"priority": 1} if wide else {})


def _text(words: str) -> Object:
    return {"type": "string", "description": words}


JOB_STATUS: Object = {
    "type": "object",
    "description": "State of the job, by the operator and the job's master.",
    "x-kubernetes-preserve-unknown-fields": True,  # a newer master may write fields that these definitions do not know
    "properties": {
        "phase": _text("Pending, Starting, Running, Draining; at its end Succeeded, Failed or Stopped."),
        "message": _text("Current message for operators."),
        "workers": _text("Running and wanted processes, such as 3/4."),
        "servers": _text("Running and wanted."),
        "dataWorkers": _text("Running and wanted."),
        "samples": {"type": "integer", "format": "int64", "description": "Trained so far."},
        "samplesPerSecond": {"type": "number"},
        "loss": {"type": "number"},
        "decision": _text("Last plan, and its reason."),
        "observedGeneration": {"type": "integer", "format": "int64"},
        "startedAt": {"type": "string", "format": "date-time"},
        "endedAt": {"type": "string", "format": "date-time"},
        "conditions": CONDITIONS,
    },
}
