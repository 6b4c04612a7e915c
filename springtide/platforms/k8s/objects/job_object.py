"""Pure. Parses an ElasticJob: the job, its owner data and its progress.

In: the object from the API. Out: the input from which `pods` and `objects` build the job's other objects, and by which
the operator decides. Also reads and sets conditions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.k8s.objects import names

Object = dict[str, Any]

PENDING, SUCCEEDED, FAILED, STOPPED = "Pending", "Succeeded", "Failed", "Stopped"
OVER = (SUCCEEDED, FAILED, STOPPED)
ACCEPTED_SPEC = "accepted"
"""Status field with the last valid spec and its generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObject:
    """An ElasticJob in a cluster."""

    name: str
    namespace: str
    uid: str
    job: ElasticJob
    generation: int = 0
    code: str = ""
    """ConfigMap with the job's code; empty if the image contains it."""
    deleting: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    """Reason why the current spec is invalid; `job` is then the last valid spec."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the ElasticJob that its pods share."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "")

    @property
    def over(self) -> bool:
        return self.phase in OVER


def read(thing: Mapping[str, Any]) -> JobObject:
    """Parse an ElasticJob. After an invalid edit, use the last valid spec, which the operator keeps in the status."""
    metadata, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    fault, annotations = "", metadata.get("annotations") or {}
    try:
        job = schema.from_spec(spec, metadata["name"])
    except errors.BadInput as error:
        if not (known := (status.get(ACCEPTED_SPEC) or {}).get("spec")):
            raise
        fault, job = str(error), schema.from_spec(known, metadata["name"])
        job = replace(job, stopped=job.stopped or spec.get("stopped") is True)
    return JobObject(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        job=job,
        fault=fault,
        generation=int(metadata.get("generation", 0)),
        code=annotations.get(names.CODE, ""),
        deleting="deletionTimestamp" in metadata,
        status=status,
        labels=schema.for_pods(metadata.get("labels") or {}),
        annotations=schema.for_pods(annotations),
    )


def owned(job: JobObject, name: str, *, labels: Mapping[str, str] | None = None) -> Object:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {**names.labels_of(job.name), **(labels or {})},
        "ownerReferences": [owner(job)],
    }


def owner(job: JobObject) -> Object:
    """Owner reference that does not block the job's deletion, which would need a right on finalizers."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": schema.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCondition:
    """One condition: true or false, with a reason."""

    type: str
    status: bool | None
    """Status; None for unknown."""
    reason: str
    """Reason in one word, for programs."""
    message: str = ""


def with_conditions(
    before: Sequence[Mapping[str, Any]], said: Iterable[JobCondition], *, at: str, generation: int
) -> list[Object]:
    """Set conditions; keep the transition time of unchanged conditions."""
    found = {str(each.get("type")): dict(each) for each in before}
    for each in said:
        status = "Unknown" if each.status is None else str(each.status)
        old = found.get(each.type, {})
        since = old.get("lastTransitionTime", at) if old.get("status") == status else at
        found[each.type] = {
            "type": each.type,
            "status": status,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": since,
            "observedGeneration": generation,
        }
    return list(found.values())


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or [] if each.get("type") == kind), {})


def merge_patch(old: Any, new: Any) -> Any:
    """Return the JSON merge patch from `old` to `new`; removed names become null."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif old[key] != value:
            patch[key] = merge_patch(old[key], value)
    return patch
