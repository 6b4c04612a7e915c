"""Pure. Complete description of a job for an agent, from `launch.spec.resolve`. Next: `platforms.agent.agent`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.spec.job_spec import JobSpec

MASTER_PORT = 7700
"""Port of a master that roles find by the name of its host. Without a master file, roles cannot learn another port."""
PATIENCE_S = 1800.0
"""Seconds for which roles continue without an agent, because a cluster may need minutes to detect that the agent's host
is lost."""
MODULES = {
    RoleKind.MASTER: "springtide.master.main",
    RoleKind.SERVER: "springtide.server.__main__",
    RoleKind.WORKER: "springtide.worker.runner",
    RoleKind.DATA_WORKER: "springtide.dataworker.processes.__main__",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The parts of one job on one platform."""

    spec: JobSpec
    script: str
    arguments: tuple[str, ...] = ()
    threads_per_worker: int = 1
    host: str = "127.0.0.1"
    """Address on which the master listens; 0.0.0.0 or :: means all addresses of its host."""
    port: int = 0
    advertise: str = ""
    """Name or address at which other roles reach the master. Empty means `host`, or the host's own address."""
    secret_file: str = ""
    """Existing file with the job's secret. If empty, the agent creates a secret, and removes the secret's file at the
    end."""
    adopt: bool = False
    """True if an earlier agent may have left running roles, which this agent then adopts."""
    report_usage: bool = False
    """True if roles measure and report their own usage, because the roles run on other hosts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings for processes that run user code; see `domain.spec.schema`."""
    grace_s: float = 30.0
    """Seconds that workers have to finish the current batch, and to exit after the end of the job."""
    debug: bool = False
    tls: bool = False
    """True if all roles use TLS, with certificates that the run has in its folder."""


def arguments_of(kind: RoleKind, plan: RunPlan, *, root: str = "") -> tuple[str, ...]:
    """Return the arguments that follow the module on the command line. Every user of a machine can read the plan, so
    the plan holds no secrets.
    """
    if kind is RoleKind.MASTER:
        return (root, plan.host, str(plan.port))
    return (plan.script,) if kind is RoleKind.WORKER else ()


def settings_of(
    life: Life, script: Mapping[str, str], arguments: Sequence[str], **others: str | float | None
) -> dict[str, str]:
    """Return the non-empty fields of `config.Settings`.

    `script` has fields for processes that run user code, `arguments` has the arguments of the script, and `others`
    has fields for every role.
    """
    kind = life.role.kind
    settings = {"member": str(life.role), "incarnation": life.incarnation, **others}
    settings |= script if kind in (RoleKind.WORKER, RoleKind.DATA_WORKER) else {}
    if arguments and kind is RoleKind.WORKER:
        settings["arguments"] = json.dumps(list(arguments))
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.items()}
    return {name: str(value) for name, value in texts.items() if value not in (None, "")}


def gpu_of(spec: JobSpec, role: Role) -> float | None:
    """Return the GPU of a role. A worker gets the share in the spec. A data worker gets no reserved GPU, because only
    GPU stages use a GPU. Other roles get none.
    """
    if role.kind is RoleKind.WORKER:
        return spec.worker_gpu
    return None if role.kind is RoleKind.DATA_WORKER and spec.worker_gpu != 0 else 0.0


def environment_of(plan: RunPlan, limits: ProcessLimits) -> dict[str, str]:
    # at most one thread per core, because more threads would delay each other
    threads = plan.threads_per_worker
    threads = threads if limits.cpu is None else max(1, min(threads, math.ceil(limits.cpu)))
    return {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
