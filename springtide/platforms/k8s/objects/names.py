"""Pure. Names in a cluster: labels, the objects of a job, paths in a pod."""

from collections.abc import Mapping
from typing import Any

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.platforms.agent import run_plan
from springtide.platforms.k8s.api.kinds import GROUP, VERSION

API_VERSION = f"{GROUP}/{VERSION}"

JOB, ROLE, RANK, INCARNATION = (f"{GROUP}/{name}" for name in ("job", "role", "rank", "incarnation"))
"""Labels of all objects of a job."""
CODE = f"{GROUP}/code"
"""Annotation of an ElasticJob that names the ConfigMap with the code that `springtide submit` uploaded."""
MASTERS = f"{GROUP}/masters"
"""Annotation of a master's pod: how many masters the job has had so far, including this one."""

LONGEST_JOB = 40
"""Longest name of a job."""

FOLDER = "/run/springtide"
CREDENTIALS, RUN, CODE_FOLDER, ARCHIVE, TMP, ACCOUNT, BRAIN_TLS = (
    f"{FOLDER}/{name}" for name in ("credentials", "run", "code", "archive", "tmp", "account", "brain-tls")
)
"""Mount paths in pods: secrets, run folder, code, code archive, scratch, service account, brain certificates."""
CODE_ARCHIVE = "code.tgz"


def master(job: str) -> str:
    return f"{job}-master"


def credentials(job: str, uid: str) -> str:
    """Return the name of the job's Secret. The name contains the uid, because an earlier job of the same name may have
    left its Secret, which the operator may not read."""
    return f"{job}-credentials-{uid[:8]}"


def brain_certificates(job: str, uid: str) -> str:
    return f"{job}-brain-{uid[:8]}"


def claim(job: str) -> str:
    return f"{job}-run"


def code(job: str) -> str:
    """Return the name prefix of the ConfigMap with the code; each submission has its own ConfigMap."""
    return f"{job}-code-"


def budget(job: str) -> str:
    return f"{job}-servers"


def master_address(job: str, namespace: str) -> str:
    return f"{master(job)}.{job}.{namespace}.svc:{run_plan.MASTER_PORT}"


def labels_of(job: str) -> dict[str, str]:
    return {JOB: job, "app.kubernetes.io/name": "springtide", "app.kubernetes.io/instance": job}


def role_labels(job: str, life: Life) -> dict[str, str]:
    role = life.role
    own = {ROLE: str(role.kind)}
    if role.kind is not RoleKind.MASTER:
        own |= {RANK: str(role.rank), INCARNATION: str(life.incarnation)}
    return {**labels_of(job), "app.kubernetes.io/component": str(role.kind), **own}


def container_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata", {}).get("labels") or {}).get(ROLE, ""))


def life_of(pod: Mapping[str, Any]) -> Life | None:
    labels = pod.get("metadata", {}).get("labels") or {}
    try:
        kind = RoleKind(labels[ROLE])
        return Life(Role(kind, int(labels.get(RANK, 0))), int(labels.get(INCARNATION, 0)))
    except (KeyError, ValueError):
        return None
