"""Pure. Builds the objects of a job other than pods: service, secret, master's role, Lease, plan, volume, budget.

In: an ElasticJob (`job_object`). Out: objects that the job owns, so that they are deleted with it. `of_job` lists the
objects that must exist before the master's pod. The master may change some of them by name, and may create none.
"""

import base64
from collections.abc import Mapping

from springtide.domain.core.roles import RoleKind
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.job_object import JobObject, owned


def of_job(job: JobObject) -> list[tuple[kinds.ObjectKind, Object]]:
    """List objects to create before the master's pod, in order."""
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
    """Return the headless service, which also publishes pods that are not ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.JOB: job.name},
        "ports": [{"name": "control", "port": names.MASTER_PORT}],
    }
    return _object(kinds.SERVICES, job, job.name) | {"spec": spec}


def secret(job: JobObject, files: Mapping[str, bytes]) -> Object:
    return _secret(job, names.credentials(job.name, job.uid), files)


def brain_certificates(job: JobObject, files: Mapping[str, bytes]) -> Object:
    """Certificates for the cluster's brain, in a Secret of their own: the job may be older than they are."""
    return _secret(job, names.brain_certificates(job.name, job.uid), files)


def _secret(job: JobObject, name: str, files: Mapping[str, bytes]) -> Object:
    data = {file: base64.b64encode(content).decode() for file, content in sorted(files.items())}
    return _object(kinds.SECRETS, job, name) | {"type": "Opaque", "data": data}


def account(job: JobObject) -> Object:
    return _object(kinds.SERVICE_ACCOUNTS, job, names.master(job.name)) | {"automountServiceAccountToken": False}


def rights(job: JobObject) -> Object:
    """Return the rules of the master's Role: read its pods; write its plan, Lease and status; create nothing."""

    def may(group: str, resource: str, *verbs: str, only: str = "") -> Object:
        rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        return rule | ({"resourceNames": [only]} if only else {})

    group, own = names.GROUP, job.name
    rules = [
        may(group, "elasticjobs", "get", "list", "watch", only=own),
        may(group, "elasticjobs/status", "get", "patch", "update", only=own),
        may(group, "scaleplans", "get", "list", "watch"),  # users' plans may have any name
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
    """Allow one voluntary eviction of a server at a time.

    `minAvailable`: the API counts percentages only for its own controllers.
    """
    selector = {names.JOB: job.name, names.ROLE: str(RoleKind.SERVER)}
    spec = {"minAvailable": max(0, servers - 1), "selector": {"matchLabels": selector}}
    return _object(kinds.DISRUPTION_BUDGETS, job, names.budget(job.name)) | {"spec": spec}


def _object(kind: kinds.ObjectKind, job: JobObject, name: str) -> Object:
    return {"apiVersion": kind.api, "kind": kind.kind, "metadata": owned(job, name)}
