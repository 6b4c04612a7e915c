"""Pure. Parses an ElasticJob, and builds the objects that it owns besides pods: service, secret, role, Lease, plan.

Owned objects are deleted with the job. `of_job` lists the objects that must exist before the master's pod. The
master may change some of these objects by name, but may create no object. The module also sets conditions.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.scale_plan import PlanStatus
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.agent import run_plan
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names

PENDING, SUCCEEDED, FAILED, STOPPED = "Pending", "Succeeded", "Failed", "Stopped"
OVER = (SUCCEEDED, FAILED, STOPPED)
APPLIED, REJECTED, SUPERSEDED = "Applied", "Rejected", "Superseded"
"""Phases of a user's ScalePlan."""
ACCEPTED_SPEC = "accepted"
"""Status field that has the last valid spec and the spec's generation."""


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
    """Reason why the current spec is invalid. If the current spec is invalid, `job` is the last valid spec."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the ElasticJob that its pods get too."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "")

    @property
    def over(self) -> bool:
        return self.phase in OVER


def read(thing: Mapping[str, Any]) -> JobObject:
    """Parse an ElasticJob. If an edit made it invalid, use the last valid spec, which the operator keeps in the
    status."""
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


def owned(job: JobObject, name: str) -> Object:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": names.labels_of(job.name),
        "ownerReferences": [owner(job)],
    }


def owner(job: JobObject) -> Object:
    """Return an owner reference that does not block the job's deletion. Blocking the deletion would need permission on
    finalizers."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": schema.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


@dataclass(frozen=True, slots=True)
class JobCondition:
    """One condition: true or false, with a reason."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def with_conditions(
    before: Sequence[Mapping[str, Any]], conditions: Iterable[JobCondition], *, at: str, generation: int
) -> list[Object]:
    """Set conditions. If a condition has not changed, keep its transition time."""
    found = {str(condition.get("type")): dict(condition) for condition in before}
    for fresh in conditions:
        status = "Unknown" if fresh.status is None else str(fresh.status)
        old = found.get(fresh.type, {})
        since = old.get("lastTransitionTime", at) if old.get("status") == status else at
        found[fresh.type] = {
            "type": fresh.type,
            "status": status,
            "reason": fresh.reason,
            "message": fresh.message,
            "lastTransitionTime": since,
            "observedGeneration": generation,
        }
    return list(found.values())


def plan_status(plan: Mapping[str, Any]) -> PlanStatus:
    known = {field.key for field in schema.fields_of(PlanStatus)}
    return schema.made(PlanStatus, {key: value for key, value in (plan.get("status") or {}).items() if key in known})


def merge_patch(old: Any, new: Any) -> Any:
    """Return the JSON merge patch from `old` to `new`. A name that `new` lacks becomes null."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif old[key] != value:
            patch[key] = merge_patch(old[key], value)
    return patch


def of_job(job: JobObject) -> list[tuple[kinds.ObjectKind, Object]]:
    made = [
        (kinds.SERVICES, service(job)),
        (kinds.SERVICE_ACCOUNTS, account(job)),
        (kinds.ROLES, rights(job)),
        (kinds.ROLE_BINDINGS, binding(job)),
        (kinds.LEASES, lease(job)),
        (kinds.SCALE_PLANS, plan(job)),
    ]
    volume = job.job.kubernetes.run_volume
    return [*made, (kinds.CLAIMS, claim(job))] if volume.size and not volume.claim else made


def service(job: JobObject) -> Object:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.JOB: job.name},
        "ports": [{"name": "control", "port": run_plan.MASTER_PORT}],
    }
    return _object(kinds.SERVICES, job, job.name) | {"spec": spec}


def secret(job: JobObject, files: Mapping[str, bytes]) -> Object:
    return _secret(job, names.credentials(job.name, job.uid), files)


def brain_certificates(job: JobObject, files: Mapping[str, bytes]) -> Object:
    """Return a separate Secret with the certificates for the cluster's brain, because these certificates may be newer
    than the job."""
    return _secret(job, names.brain_certificates(job.name, job.uid), files)


def _secret(job: JobObject, name: str, files: Mapping[str, bytes]) -> Object:
    data = {file: base64.b64encode(content).decode() for file, content in sorted(files.items())}
    return _object(kinds.SECRETS, job, name) | {"type": "Opaque", "data": data}


def account(job: JobObject) -> Object:
    return _object(kinds.SERVICE_ACCOUNTS, job, names.master(job.name)) | {"automountServiceAccountToken": False}


def rights(job: JobObject) -> Object:
    """Return the rules of the master's Role: it may read its pods, write its plan, Lease and status, and create
    nothing."""

    def may(group: str, resource: str, *verbs: str, only: str = "") -> Object:
        rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        return rule | ({"resourceNames": [only]} if only else {})

    group, own = kinds.GROUP, job.name
    rules = [
        may(group, "elasticjobs", "get", "list", "watch", only=own),
        may(group, "elasticjobs/status", "get", "patch", "update", only=own),
        may(group, "scaleplans", "get", "list", "watch"),  # list all plans, because users' plans may have any name
        may(group, "scaleplans", "update", "patch", only=own),
        may(group, "scaleplans/status", "patch", "update"),
        may("coordination.k8s.io", "leases", "get", "update", "patch", only=names.master(own)),
        may("", "pods", "get", "list", "watch"),
    ]
    return _object(kinds.ROLES, job, names.master(own)) | {"rules": rules}


def binding(job: JobObject) -> Object:
    name = names.master(job.name)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": job.namespace}
    return _object(kinds.ROLE_BINDINGS, job, name) | {"roleRef": role, "subjects": [subject]}


def lease(job: JobObject) -> Object:
    return _object(kinds.LEASES, job, names.master(job.name)) | {"spec": {"leaseTransitions": 0}}


def plan(job: JobObject) -> Object:
    return _object(kinds.SCALE_PLANS, job, job.name) | {"spec": {"job": job.name, "origin": "master"}}


def claim(job: JobObject) -> Object:
    wish = job.job.kubernetes.run_volume
    spec: Object = {
        "accessModes": ["ReadWriteMany" if wish.shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": wish.size}},
    }
    if wish.storage_class:
        spec["storageClassName"] = wish.storage_class
    return _object(kinds.CLAIMS, job, names.claim(job.name)) | {"spec": spec}


def budget(job: JobObject, servers: int) -> Object:
    """Allow one voluntary eviction of a server at a time. The budget uses an absolute `minAvailable`, because the API
    supports `maxUnavailable` and percentages only for pods of its own controllers.
    """
    selector = {names.JOB: job.name, names.ROLE: str(RoleKind.SERVER)}
    spec = {"minAvailable": max(0, servers - 1), "selector": {"matchLabels": selector}}
    return _object(kinds.DISRUPTION_BUDGETS, job, names.budget(job.name)) | {"spec": spec}


def _object(kind: kinds.ObjectKind, job: JobObject, name: str) -> Object:
    return {"apiVersion": kind.api, "kind": kind.kind, "metadata": owned(job, name)}
