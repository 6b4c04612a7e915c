"""Pure. Builds all objects of `springtide k8s install`, in the order of their creation. The Helm chart uses the same
objects."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.kinds import Object, ObjectKind
from springtide.platforms.k8s.objects import crds, pods

OURS, RBAC = kinds.GROUP, "rbac.authorization.k8s.io"

LOOK = ("get", "list", "watch")
NAMESPACE = "springtide"
OPERATOR, BRAIN, BRAIN_TLS = "springtide-operator", "springtide-brain", "springtide-brain-tls"
BRAIN_PORT, BRAIN_HEALTH_PORT, HEALTH_PORT = 7790, 7791, 8080
SECRET_FOLDER, SCRATCH = "/run/springtide/brain-secret", "/run/springtide/tmp"
TLS_FOLDER = "/run/springtide/brain-tls"


@dataclass(frozen=True, slots=True)
class Right:
    """One RBAC rule."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    cluster: bool = False

    @property
    def rule(self) -> Object:
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}


OPERATOR_RIGHTS = (
    Right(OURS, "elasticjobs", (*LOOK, "delete"), "watches jobs; deletes jobs whose keepS is over"),
    Right(OURS, "elasticjobs/status", ("get", "patch", "update"), "reports problems while no master runs"),
    Right(
        OURS, "scaleplans", (*LOOK, "create", "update", "patch"), "creates the empty plan of a job, watches its changes"
    ),
    Right(OURS, "scaleplans/status", ("get", "patch", "update"), "reports the state of each pod"),
    Right("", "pods", (*LOOK, "create", "delete"), "creates and ends the pods of jobs"),
    Right("", "pods/resize", ("get", "patch"), "changes CPU and memory of running pods"),
    Right("", "pods/eviction", ("create",), "lets nodes be drained, within the disruption budget of the servers"),
    Right("", "services", ("get", "create"), "names for a job's pods"),
    Right(
        "",
        "secrets",
        ("create",),
        "creates a job's secret and certificates; the operator can read no secret, not even its own",
    ),
    Right("", "serviceaccounts", ("get", "create"), "the account of a job's master"),
    Right(RBAC, "roles", ("get", "create", "patch", "update"), "the rights of a job's master"),
    Right(RBAC, "rolebindings", ("get", "create"), "grants these rights to that account"),
    Right(
        "coordination.k8s.io", "leases", ("get", "create", "update", "patch"), "the Lease from which masters get terms"
    ),
    Right("", "persistentvolumeclaims", ("get", "create"), "the volume of a run, if the job has one"),
    Right("policy", "poddisruptionbudgets", ("get", "create", "patch"), "one server at a time may be evicted"),
    Right("", "events", ("create", "patch"), "shows events to users: kubectl describe"),
    Right("", "nodes", LOOK, "resources of nodes, and nodes that will be removed", cluster=True),
)

EDIT_RIGHTS = (
    Right(OURS, "elasticjobs", (*LOOK, "create", "update", "patch", "delete"), "submit, stop and delete jobs"),
    Right(OURS, "scaleplans", (*LOOK, "create", "delete"), "scale a job by hand"),
)

VIEW_RIGHTS = (
    Right(OURS, "elasticjobs", LOOK, "read jobs"),
    Right(OURS, "scaleplans", LOOK, "read the plans of masters"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """Options of an installation."""

    image: str
    """Image of the operator, of the brain, and of jobs without an image."""
    namespace: str = NAMESPACE
    only: str = ""
    """The only namespace whose jobs the operator serves; empty for all namespaces."""
    database: str = ""
    """URL of a PostgreSQL database for a brain; empty for no brain. Without a brain, each master plans alone."""
    brain_secret: str = ""
    """Secret that masters present to the brain, in hex."""
    brain_capacity: str = ""
    brain_replicas: int = 2
    brain_files: Mapping[str, bytes] = field(default_factory=dict)
    """Certificates of the brain and its clients (`platforms.agent.credentials`), by name; empty for no TLS."""


def everything(plan: InstallPlan) -> list[Object]:
    found = [namespace(plan)] if plan.namespace != "default" else []
    found += [*crds.all_definitions(), *user_roles(), account(plan), *operator_rights(plan)]
    if plan.database:
        found += [brain_secret(plan), *brain_certificates(plan), brain_service(plan), brain_deployment(plan)]
    return [*found, operator_deployment(plan)]


def namespace(plan: InstallPlan) -> Object:
    body = _object(kinds.NAMESPACES, plan.namespace)
    body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    return body


def account(plan: InstallPlan) -> Object:
    return _object(kinds.SERVICE_ACCOUNTS, OPERATOR, plan.namespace)


def operator_rights(plan: InstallPlan) -> list[Object]:
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": plan.namespace}
    role, binding = (
        (kinds.ROLES, kinds.ROLE_BINDINGS) if plan.only else (kinds.CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS)
    )
    rules = [right.rule for right in OPERATOR_RIGHTS if not (plan.only and right.cluster)]
    granted = _object(role, OPERATOR, plan.only) | {"rules": rules}
    reference = {"apiGroup": RBAC, "kind": role.kind, "name": OPERATOR}
    return [granted, _object(binding, OPERATOR, plan.only) | {"roleRef": reference, "subjects": [subject]}]


def user_roles() -> list[Object]:
    found = []
    for name, given, extends in (
        ("springtide-edit", EDIT_RIGHTS, ("edit", "admin")),
        ("springtide-view", VIEW_RIGHTS, ("view",)),
    ):
        body = _object(kinds.CLUSTER_ROLES, name) | {"rules": [right.rule for right in given]}
        body["metadata"]["labels"] |= {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in extends}
        found.append(body)
    return found


def operator_deployment(plan: InstallPlan) -> Object:
    command = ["springtide", "k8s", "operator", "--image", plan.image]
    command += ["--health", f"http://0.0.0.0:{HEALTH_PORT}/healthz"]
    command += ["--namespace", plan.only] if plan.only else []
    secrets: list[Object] = []
    if plan.database:
        command += ["--brain", f"{BRAIN}.{plan.namespace}.svc:{BRAIN_PORT}"]
        command += ["--brain-secret-file", f"{SECRET_FOLDER}/secret"]
        command += ["--brain-tls", TLS_FOLDER] if plan.brain_files else []
        secrets = _brain_volumes(plan, "master", "")
    container = _container("operator", plan.image, command, cpu="100m", memory="256Mi", secrets=secrets) | {
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "periodSeconds": 20,
            "failureThreshold": 3,
        },
    }
    spec = _pod_spec(container, secrets) | {"serviceAccountName": OPERATOR, "terminationGracePeriodSeconds": 10}
    return _deployment(plan, OPERATOR, "operator", spec, replicas=1, strategy={"type": "Recreate"})


def brain_secret(plan: InstallPlan) -> Object:
    values = {"secret": plan.brain_secret, "database": plan.database}
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return _object(kinds.SECRETS, BRAIN, plan.namespace) | {"type": "Opaque", "data": data}


def brain_certificates(plan: InstallPlan) -> list[Object]:
    if not plan.brain_files:
        return []
    data = {name: base64.b64encode(content).decode() for name, content in sorted(plan.brain_files.items())}
    return [_object(kinds.SECRETS, BRAIN_TLS, plan.namespace) | {"type": "Opaque", "data": data}]


def brain_service(plan: InstallPlan) -> Object:
    port = {"name": "brain", "port": BRAIN_PORT, "targetPort": "brain"}
    spec = {"selector": _selector("brain"), "ports": [port]}
    return _object(kinds.SERVICES, BRAIN, plan.namespace) | {"spec": spec}


def brain_deployment(plan: InstallPlan) -> Object:
    """Return the Deployment of several brains with one database. One brain serves, and the standbys are not ready."""
    command = ["springtide", "brain", "serve", "--standby", "--listen", f"0.0.0.0:{BRAIN_PORT}"]
    command += ["--health", f"0.0.0.0:{BRAIN_HEALTH_PORT}"]
    command += ["--capacity", plan.brain_capacity, "--secret-file", f"{SECRET_FOLDER}/secret"]
    command += ["--folder", f"{SCRATCH}/brain"]
    command += ["--tls", TLS_FOLDER] if plan.brain_files else []
    secrets = _brain_volumes(plan, "brain", "brain/")
    ports = {"brain": BRAIN_PORT, "health": BRAIN_HEALTH_PORT}
    container = _container("brain", plan.image, command, cpu="500m", memory="1Gi", secrets=secrets) | {
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "health"}, "periodSeconds": 2, "failureThreshold": 1},
        "livenessProbe": {"httpGet": {"path": "/live", "port": "health"}, "periodSeconds": 20, "failureThreshold": 3},
    }
    source = {"secretKeyRef": {"name": BRAIN, "key": "database"}}
    container["env"].append({"name": "SPRINGTIDE_BRAIN_DATABASE", "valueFrom": source})
    spec = _pod_spec(container, secrets) | {"automountServiceAccountToken": False}
    # standby brains are never ready, so an update that waits for readiness would never end
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
    return _deployment(plan, BRAIN, "brain", spec, replicas=plan.brain_replicas, strategy=strategy)


def _deployment(
    plan: InstallPlan, name: str, component: str, spec: Object, *, replicas: int, strategy: Object
) -> Object:
    labels = {"app.kubernetes.io/name": "springtide", **_selector(component)}
    body: Object = {
        "replicas": replicas,
        "selector": {"matchLabels": _selector(component)},
        "template": {"metadata": {"labels": labels}, "spec": spec},
        "strategy": strategy,
    }
    return _object(kinds.DEPLOYMENTS, name, plan.namespace) | {"spec": body}


def _pod_spec(container: Object, volumes: list[Object]) -> Object:
    return {
        "securityContext": pods.RESTRICTED,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }


def _container(name: str, image: str, command: list[str], *, cpu: str, memory: str, secrets: list[Object]) -> Object:
    mounts: list[Object] = [{"name": "tmp", "mountPath": SCRATCH}]
    where = {"brain-secret": SECRET_FOLDER, "brain-tls": TLS_FOLDER}
    mounts += [{"name": secret["name"], "mountPath": where[secret["name"]], "readOnly": True} for secret in secrets]
    return {
        "name": name,
        "image": image,
        "command": command,
        "env": [{"name": variable, "value": SCRATCH} for variable in ("TMPDIR", "HOME")],
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
        "volumeMounts": mounts,
        "securityContext": pods.UNPRIVILEGED,
    }


def _brain_volumes(plan: InstallPlan, role: str, below: str) -> list[Object]:
    items = [{"key": "secret", "path": "secret"}]
    found = [{"name": "brain-secret", "secret": {"secretName": BRAIN, "defaultMode": 0o440, "items": items}}]
    if plan.brain_files:
        files = {"ca.crt": "ca.crt", f"{role}.crt": "tls.crt", f"{role}.key": "tls.key"}
        items = [{"key": key, "path": f"{below}{path}"} for key, path in files.items()]
        found += [{"name": "brain-tls", "secret": {"secretName": BRAIN_TLS, "defaultMode": 0o440, "items": items}}]
    return found


def _selector(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/part-of": "springtide", "app.kubernetes.io/component": component}


def _object(kind: ObjectKind, name: str, space: str = "") -> Object:
    body = kind.body(name, space)
    body["metadata"]["labels"] = {"app.kubernetes.io/name": "springtide", "app.kubernetes.io/part-of": "springtide"}
    return body
