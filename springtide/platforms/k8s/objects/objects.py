"""Pure. What a job has in a cluster besides pods: service, secret, rights of its master, Lease, plan, volume, budget.

In: an ElasticJob (`job_object`). Out: objects that belong to it, so that they go when it goes. `of_job` lists those
that must be there before the master's pod is: the master may change some of them by name, and create nothing at all.
"""

import base64
from collections.abc import Mapping

from springtide.domain.core.roles import RoleKind
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.job_object import JobObject, owned


def of_job(job: JobObject) -> list[tuple[kinds.ObjectKind, Object]]:
    """All that can be made from the job alone, in order; its secret is made of chance, and its budget of its plan."""
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
    """Names for the job's pods as soon as they have an address: a role that is not ready yet must be found too."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.JOB: job.name},
        "ports": [{"name": "control", "port": names.MASTER_PORT}],
    }
    return _object(kinds.SERVICES, job, job.name) | {"spec": spec}


def secret(job: JobObject, files: Mapping[str, bytes]) -> Object:
    """The job's secret and certificates: only its own pods mount it, and of it only what is theirs."""
    return _secret(job, names.credentials(job.name, job.uid), files)


def brain_certificates(job: JobObject, files: Mapping[str, bytes]) -> Object:
    """By which its master asks the cluster's brain: apart, since jobs may be older than the brain's certificates."""
    return _secret(job, names.brain_certificates(job.name, job.uid), files)


def _secret(job: JobObject, name: str, files: Mapping[str, bytes]) -> Object:
    data = {file: base64.b64encode(content).decode() for file, content in sorted(files.items())}
    return _object(kinds.SECRETS, job, name) | {"type": "Opaque", "data": data}


def account(job: JobObject) -> Object:
    """Of the master's pod; nothing mounts its token unasked."""
    return _object(kinds.SERVICE_ACCOUNTS, job, names.master(job.name)) | {"automountServiceAccountToken": False}


def rights(job: JobObject) -> Object:
    """What a master may do: look at its pods and its job, write its plan, its Lease and statuses. It makes no pods."""

    def may(group: str, resource: str, *verbs: str, only: str = "") -> Object:
        rule = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        return rule | ({"resourceNames": [only]} if only else {})

    group, own = names.GROUP, job.name
    rules = [
        may(group, "elasticjobs", "get", "list", "watch", only=own),
        may(group, "elasticjobs/status", "get", "patch", "update", only=own),
        may(group, "scaleplans", "get", "list", "watch"),  # users' plans have any name
        may(group, "scaleplans", "update", "patch", only=own),
        may(group, "scaleplans/status", "patch", "update"),
        may("coordination.k8s.io", "leases", "get", "update", "patch", only=names.master(own)),
        may("", "pods", "get", "list", "watch"),
    ]
    return _object(kinds.ROLES, job, names.master(own)) | {"rules": rules}


def binding(job: JobObject) -> Object:
    """The master's account has these rights."""
    name = names.master(job.name)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": job.namespace}
    return _object(kinds.ROLE_BINDINGS, job, name) | {"roleRef": role, "subjects": [subject]}


def lease(job: JobObject) -> Object:
    """Who is master: each one that takes over raises `leaseTransitions`, the master's term."""
    return _object(kinds.LEASES, job, names.master(job.name)) | {"spec": {"leaseTransitions": 0}}


def plan(job: JobObject) -> Object:
    """The master's own plan, empty until it has one."""
    return _object(kinds.SCALE_PLANS, job, job.name) | {"spec": {"job": job.name, "origin": "master"}}


def claim(job: JobObject) -> Object:
    """The volume of the run's folder: the journal, and checkpoints where all pods mount it."""
    wish = job.job.kubernetes.run_volume
    spec: Object = {
        "accessModes": ["ReadWriteMany" if wish.shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": wish.size}},
    }
    if wish.storage_class:
        spec["storageClassName"] = wish.storage_class
    return _object(kinds.CLAIMS, job, names.claim(job.name)) | {"spec": spec}


def budget(job: JobObject, servers: int) -> Object:
    """Whoever empties nodes takes one server at a time: it hands its slots over before the next may go.

    A number of those that stay, since the API counts others only for pods of its own controllers.
    """
    selector = {names.JOB: job.name, names.ROLE: str(RoleKind.SERVER)}
    spec = {"minAvailable": max(0, servers - 1), "selector": {"matchLabels": selector}}
    return _object(kinds.DISRUPTION_BUDGETS, job, names.budget(job.name)) | {"spec": spec}


def _object(kind: kinds.ObjectKind, job: JobObject, name: str) -> Object:
    return {"apiVersion": kind.api, "kind": kind.kind, "metadata": owned(job, name)}
