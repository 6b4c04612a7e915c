"""Pure. Builds the pods of a job: the master's pod, and one pod per entry of a scale plan.

Pods have no privileges on their node, see only their own keys and find their master by name. Pods have no probes,
because the master finds hung roles by missing heartbeats and a probe could kill a busy role.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.plan.scale_plan import PodWish
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, gpu_of
from springtide.platforms.agent import run_plan
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects import names
from springtide.platforms.k8s.objects.job_objects import JobObject, owned

LOCAL, QUIET = 100, 50
"""Affinity weights (1 to 100). A data worker prefers nodes with trainers of its own job, because batches then do not
cross the network. Its second choice is a node without trainers of other jobs.
"""
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

USER = 10001
"""User id of containers; images need not define this user."""
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
"""Security contexts of all pods and containers: the `restricted` standard of Kubernetes."""
GONE_NODE_S = 30
"""Seconds after which pods on an unreachable node are evicted; the default of Kubernetes is 300."""
GPU = "nvidia.com/gpu"
"""Resource that NVIDIA's device plugin provides, and the key of the taint on nodes that have it."""
THREADS = 4
"""Number of torch threads in a pod without a CPU limit, because one thread per core of the node would disturb other
pods."""
MASTER_RESOURCES = {"requests": {"cpu": "500m", "memory": "512Mi"}}
"""Resources that a master requests; a master may use more than this."""
PATIENCE_S = 900
"""Seconds for which roles search for the job's next master, because the master's pod may wait for a node or for the
image.
"""
MASTER_MODULE = "springtide.launch.k8s.agent_pod"
POD_MODULE = "springtide.platforms.k8s.job.role_pod"


def affinity(job: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Add our preferences unless the user gave pod affinities."""
    trainer = {"key": names.ROLE, "operator": "In", "values": [str(RoleKind.WORKER)]}
    mine = {"key": names.JOB, "operator": "In", "values": [job]}
    others = {"key": names.JOB, "operator": "NotIn", "values": [job]}
    wanted = {
        "podAffinity": {PREFERRED: [_preference(LOCAL, trainer, mine)]},
        "podAntiAffinity": {PREFERRED: [_preference(QUIET, trainer, others)]},
    }
    return {**wanted, **given}


def _preference(weight: int, *pods: Mapping[str, Any]) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchExpressions": [dict(pod) for pod in pods]}}
    return {"weight": weight, "podAffinityTerm": term}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Defaults of the operator for all jobs."""

    image: str
    brain: str = ""
    """Address (host:port) of the cluster's brain, for jobs that name no brain."""
    brain_tls: bool = False
    """True if the brain uses TLS, with certificates in a secret of each job (`names.brain_certificates`)."""
    scheduler: str = ""


def master_pod(job: JobObject, site: Site, *, number: int = 1) -> Object:
    """Return the master's pod. The kubelet restarts the container of this pod; the operator replaces a lost pod."""
    name = names.master(job.name)
    life = Life(Role(RoleKind.MASTER))
    container = _container(job, site, "master", MASTER_MODULE, (job.namespace, job.name), MASTER_RESOURCES) | {
        "ports": [{"name": "control", "containerPort": run_plan.MASTER_PORT}]
    }
    container["env"] += environment(job, site, life)
    container["volumeMounts"] += [{"name": "account", "mountPath": names.ACCOUNT, "readOnly": True}]
    volumes = [_account_volume(), _run_volume(job)]
    if site.brain and site.brain_tls and not job.job.brain:
        source = {"secretName": names.brain_certificates(job.name, job.uid), "defaultMode": 0o440}
        volumes.append({"name": "brain-tls", "secret": source})
        container["volumeMounts"] += [{"name": "brain-tls", "mountPath": names.BRAIN_TLS, "readOnly": True}]
    pod = _pod(job, site, life, name, container, volumes=volumes)
    pod["metadata"]["annotations"][names.MASTERS] = str(number)
    pod["spec"] |= {"restartPolicy": "OnFailure", "serviceAccountName": name}
    return pod


def pod_of(job: JobObject, entry: PodWish, site: Site) -> Object:
    wish, life, name = job.job.kubernetes, entry.life, entry.pod_name(job.name)
    kind = life.role.kind
    arguments = (job.job.script,) if kind is RoleKind.WORKER else ()
    container = _container(job, site, entry.role, run_plan.MODULES[kind], arguments, resources_of(job, entry))
    container["env"] += environment(job, site, life, cpu=entry.cpu)
    container["resizePolicy"] = [
        {"resourceName": resource, "restartPolicy": "NotRequired"} for resource in ("cpu", "memory")
    ]
    # a data worker gets no preStop hook, because it has no state and exits on SIGTERM
    if kind is not RoleKind.DATA_WORKER:
        container["lifecycle"] = {"preStop": {"exec": {"command": ["python", "-m", POD_MODULE, "drain"]}}}
    shared = _run_volume(job) if wish.run_volume.shared else {"name": "run", "emptyDir": {}}
    volumes = [shared]
    # not for servers; torch passes tensors between processes through shared memory, for which the default of 64M is too
    # little
    if kind is not RoleKind.SERVER:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    pod = _pod(job, site, life, name, container, volumes=volumes)
    pod["spec"] |= {"restartPolicy": "Never"}
    if wish.service_account:
        pod["spec"]["serviceAccountName"] = wish.service_account
    if kind is RoleKind.WORKER:
        pod["spec"]["tolerations"] += gpu_tolerations(job.job)
    if kind is RoleKind.SERVER:
        pod["spec"]["topologySpreadConstraints"] = [_spread(job)]
    if kind is RoleKind.DATA_WORKER:
        pod["spec"]["affinity"] = affinity(job.name, wish.affinity)
    return pod


def gpu_tolerations(job: ElasticJob) -> list[Object]:
    """Return the tolerations that let workers with a GPU run on nodes that are reserved for such pods."""
    given = {each.get("key") for each in job.kubernetes.tolerations}
    return [{"key": GPU, "operator": "Exists"}] if gpu_of(job.workers, job.quota) and GPU not in given else []


def resources_of(job: JobObject, entry: PodWish) -> Object:
    limits = {}
    if entry.cpu is not None:
        limits["cpu"] = kinds.cpu_quantity(entry.cpu)
    if entry.memory is not None:
        limits["memory"] = kinds.memory_quantity(entry.memory)
    if entry.role == RoleKind.WORKER and (gpu := gpu_of(job.job.workers, job.job.quota)):
        limits[GPU] = f"{gpu:.0f}"
    return {"requests": dict(limits), "limits": limits} if limits else {}


def environment(job: JobObject, site: Site, life: Life, *, cpu: float | None = None) -> list[Object]:
    """Return the variables of a role; user variables cannot override variables that identify the job."""
    settings = run_plan.settings_of(
        life,
        schema.settings_of(job.job),
        job.job.arguments,
        master=names.master_address(job.name, job.namespace),
        secret_file=f"{names.CREDENTIALS}/secret",
        tls=names.CREDENTIALS if job.job.kubernetes.tls else "",
        master_patience_s=PATIENCE_S,
        report_usage="1",
        debug=0,
    )
    variables = {f"SPRINGTIDE_{name.upper()}": value for name, value in settings.items()}
    variables["SPRINGTIDE_SHARED_MEMORY"] = "0"  # pods on one node share no memory
    if life.role.kind is RoleKind.SERVER and not job.job.kubernetes.run_volume.shared:
        # with a shared volume, all pods can see the run folder, so checkpoints go there
        variables["SPRINGTIDE_SCRATCH"] = names.RUN
    if life.role.kind is RoleKind.MASTER:
        if brain := job.job.brain or site.brain:
            variables["SPRINGTIDE_BRAIN"] = brain
        if not job.job.brain and site.brain:
            variables["SPRINGTIDE_BRAIN_SECRET_FILE"] = f"{names.CREDENTIALS}/brain-secret"
            variables |= {"SPRINGTIDE_BRAIN_TLS": names.BRAIN_TLS} if site.brain_tls else {}
    threads = {"OMP_NUM_THREADS": str(THREADS if cpu is None else max(1, math.ceil(cpu)))}
    plain = {"PYTHONUNBUFFERED": "1", **threads, **job.job.environment, **variables}
    own = (("SPRINGTIDE_HOST", "status.podIP"), ("SPRINGTIDE_NODE", "spec.nodeName"))
    found = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in own]
    return [*found, *({"name": name, "value": value} for name, value in plain.items())]


def _container(
    job: JobObject, site: Site, name: str, module: str, arguments: tuple[str, ...], wanted: Object
) -> Object:
    wish = job.job.kubernetes
    command = ["python", "-m", *((POD_MODULE, "run", module) if job.code else (module,)), *arguments]
    mounts: list[Any] = [
        {"name": "credentials", "mountPath": names.CREDENTIALS, "readOnly": True},
        {"name": "run", "mountPath": names.RUN},
        {"name": "tmp", "mountPath": names.TMP},
    ]
    if job.code:
        mounts += [
            {"name": "archive", "mountPath": names.ARCHIVE, "readOnly": True},
            {"name": "code", "mountPath": names.CODE_FOLDER},
        ]
    container: Object = {
        "name": name,
        "image": job.job.image or site.image,
        "command": command,
        "env": [{"name": variable, "value": names.TMP} for variable in ("TMPDIR", "HOME")],
        "resources": wanted,
        "volumeMounts": [*mounts, *(dict(volume_mount) for volume_mount in wish.volume_mounts)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": UNPRIVILEGED,
    }
    if wish.environment_secrets:
        container["envFrom"] = [
            {"secretRef": {"name": environment_secret}} for environment_secret in wish.environment_secrets
        ]
    if wish.image_pull_policy:
        container["imagePullPolicy"] = wish.image_pull_policy
    return container


def _pod(job: JobObject, site: Site, life: Life, name: str, container: Object, *, volumes: list[Object]) -> Object:
    wish = job.job.kubernetes
    metadata = owned(job, name)
    metadata["labels"] = {**job.labels, **wish.labels, **names.role_labels(job.name, life)}
    # without this annotation, the pods' scratch volumes would keep the cluster autoscaler from removing a node
    metadata["annotations"] = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
        **job.annotations,
        **wish.annotations,
    }
    volumes = [_credentials_volume(job, life.role.kind), {"name": "tmp", "emptyDir": {}}, *volumes]
    if job.code:
        volumes += [{"name": "archive", "configMap": {"name": job.code}}, {"name": "code", "emptyDir": {}}]
    spec: Object = {
        "hostname": name,
        "subdomain": job.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": wish.grace_s,
        "securityContext": {**RESTRICTED, "fsGroupChangePolicy": "OnRootMismatch"},
        "tolerations": [*(dict(toleration) for toleration in wish.tolerations), *lost_nodes(wish.tolerations)],
        "volumes": [*volumes, *(dict(volume) for volume in wish.volumes)],
        "containers": [container],
    }
    optional = {
        "priorityClassName": wish.priority_class,
        "schedulerName": wish.scheduler_name or site.scheduler,
        "nodeSelector": dict(wish.node_selector),
        "affinity": dict(wish.affinity),
        "imagePullSecrets": [{"name": image_pull_secret} for image_pull_secret in wish.image_pull_secrets],
    }
    spec |= {key: value for key, value in optional.items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def lost_nodes(given: tuple[Mapping[str, Any], ...]) -> list[Object]:
    """Return tolerations that make Kubernetes evict pods from a lost node after `GONE_NODE_S`, unless the user gave
    other tolerations."""
    tolerated = {toleration.get("key") for toleration in given}
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": GONE_NODE_S}
        for key in keys
        if key not in tolerated
    ]


def _credentials_volume(job: JobObject, kind: RoleKind) -> Object:
    items = [{"key": "secret", "path": "secret"}]
    if kind is RoleKind.MASTER:
        items.append({"key": "brain-secret", "path": "brain-secret"})
    if job.job.kubernetes.tls:
        items.append({"key": "ca.crt", "path": "ca.crt"})
        items += [{"key": f"{kind}.{part}", "path": f"tls.{part}"} for part in ("crt", "key")]
    source = {"secretName": names.credentials(job.name, job.uid), "defaultMode": 0o440, "items": items}
    return {"name": "credentials", "secret": source}


def _run_volume(job: JobObject) -> Object:
    volume = job.job.kubernetes.run_volume
    claim = volume.claim or (names.claim(job.name) if volume.size else "")
    return {"name": "run"} | ({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})


def _account_volume() -> Object:
    """Return the volume with the token of the master's account, for a path that no other container reads."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    authority = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    field = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [token, authority, {"downwardAPI": {"items": [field]}}]
    return {"name": "account", "projected": {"sources": sources, "defaultMode": 0o440}}


def _spread(job: JobObject) -> Object:
    """Spread servers over nodes, so that the loss of one node costs only one server."""
    selector = {names.JOB: job.name, names.ROLE: str(RoleKind.SERVER)}
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }
