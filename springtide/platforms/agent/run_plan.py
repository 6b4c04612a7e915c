"""Pure. Complete description of a job for an agent, from `launch.spec.resolve`. Next: `platforms.agent.agent`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, RoleKind
from springtide.domain.spec.job_spec import JobSpec

MASTER_PORT = 7700
"""Port of a master that is found by name, without a file that could give another port."""
PATIENCE_S = 1800.0
"""Seconds that roles without an agent wait: a cluster may need minutes to give up the agent's host."""
MODULES = {
    RoleKind.MASTER: "springtide.master.main",
    RoleKind.SERVER: "springtide.server.__main__",
    RoleKind.WORKER: "springtide.worker.runner",
    RoleKind.DATA_WORKER: "springtide.dataworker.processes.__main__",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One job on one platform."""

    spec: JobSpec
    script: str
    arguments: tuple[str, ...] = ()
    threads_per_worker: int = 1
    host: str = "127.0.0.1"
    """Address that the master listens on; 0.0.0.0 or :: for all addresses of its host."""
    port: int = 0
    """Port of the master; 0 for a free one."""
    advertise: str = ""
    """Name or address by which other roles reach the master; empty for `host`, or the host's own address."""
    secret_file: str = ""
    """Existing file with the job's secret. Empty to draw a secret, which is removed at the end."""
    adopt: bool = False
    """True if an earlier agent may have left running roles to adopt."""
    report_usage: bool = False
    """True if roles report their own usage, because they run on other hosts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables from the user for every process."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Additional settings for processes with user code; see `domain.spec.schema`."""
    grace_s: float = 30.0
    """Seconds for workers to finish the current batch, and to exit after the end of the job."""
    debug: bool = False
    tls: bool = False
    """True if all roles use TLS, with certificates of this run in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEndpoints:
    """Addresses and files by which a role finds its job and is found."""

    master: str = ""
    """Address of the master as host:port; a name is resolved for every attempt."""
    master_file: str = ""
    """File on the role's host with the master's current address; empty if the name is stable."""
    secret_file: str = ""
    """File with the secret, on the role's host."""
    host: str = ""
    """Address of the role; empty for the interface that faces the master."""
    tls: str = ""
    """Folder with certificates on the role's host; empty for none."""
    patience_s: float | None = None
    """Seconds that the role searches for a lost master; None for the time of a restart on the same host."""


def module_of(kind: RoleKind) -> str:
    return MODULES[kind]


def arguments_of(kind: RoleKind, plan: RunPlan, *, root: str = "") -> tuple[str, ...]:
    """Return the command line after the module. Every user of a machine can read it, so it holds no secrets."""
    if kind is RoleKind.MASTER:
        return (root, plan.host, str(plan.port))
    return (plan.script,) if kind is RoleKind.WORKER else ()


def settings_of(
    life: Life,
    there: RoleEndpoints,
    *,
    debug: bool = False,
    report_usage: bool = False,
    script: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, str]:
    """Return fields of `config.Settings`. `script`: fields for processes with user code; `arguments`: the script's."""
    said = {
        "member": str(life.role),
        "incarnation": str(life.incarnation),
        "master": there.master,
        "master_file": there.master_file,
        "secret_file": there.secret_file,
        "host": there.host,
        "tls": there.tls,
        "master_patience_s": f"{there.patience_s:g}" if there.patience_s else "",
        "report_usage": "1" if report_usage else "",
        "debug": str(int(debug)),
        "arguments": json.dumps(list(arguments)) if arguments and life.role.kind is RoleKind.WORKER else "",
        **(script or {} if life.role.kind in (RoleKind.WORKER, RoleKind.DATA_WORKER) else {}),
    }
    return {name: value for name, value in said.items() if value}


def environment_of(plan: RunPlan, limits: ProcessLimits) -> dict[str, str]:
    threads = plan.threads_per_worker  # more threads than cores would slow each other down
    threads = threads if limits.cpu is None else max(1, min(threads, math.ceil(limits.cpu)))
    return {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
