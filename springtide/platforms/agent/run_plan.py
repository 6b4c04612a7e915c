"""Pure. All that an agent must know to run a job. In: `launch.spec.resolve`, and tests. Next:
`platforms.agent.agent`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, RoleKind
from springtide.domain.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One job on one platform."""

    spec: JobSpec
    script: str
    arguments: tuple[str, ...] = ()
    threads_per_worker: int = 1
    host: str = "127.0.0.1"
    """Where the master listens; 0.0.0.0 or ::: at all addresses of its host."""
    port: int = 0
    """The master's port; 0 takes a free one."""
    advertise: str = ""
    """Name or address by which the others reach the master. Empty: `host`, or its host's own where that says all."""
    secret_file: str = ""
    """A file with the job's secret that is there already. Empty: one is drawn, and removed in the end."""
    adopt: bool = False
    """Whether an agent may have run this job before: what that one has left running is taken over."""
    report_usage: bool = False
    """Whether roles measure themselves, because the agent cannot: they are on other hosts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user wants every process to have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of processes with the user's code: see `domain.spec.schema`."""
    grace_s: float = 30.0
    """How long workers may take to finish the batch in hand, and to leave after the job's end."""
    debug: bool = False
    tls: bool = False
    """Whether all roles speak by TLS, with certificates that are made for this run and lie in its folder."""


MASTER_PORT = 7700
"""Of a master that is found by a name: there is no file that could say another."""

PATIENCE_S = 1800.0
"""Of roles that outlive their agent: a cluster may take minutes to give up the host that it was on."""

MODULES = {
    RoleKind.MASTER: "springtide.master.main",
    RoleKind.SERVER: "springtide.server.__main__",
    RoleKind.WORKER: "springtide.worker.runner",
    RoleKind.DATA_WORKER: "springtide.dataworker.processes.__main__",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEndpoints:
    """Where a role finds its job, and where it is found."""

    master: str = ""
    """host:port; a name is looked up anew for every attempt."""
    master_file: str = ""
    """File on the role's own host that says where the master is now; empty: it stays at that name."""
    secret_file: str = ""
    """On the role's own host."""
    host: str = ""
    """The role's own address; empty: that of the interface which faces the master."""
    tls: str = ""
    """Folder on the role's own host with its certificates; empty: none."""
    patience_s: float | None = None
    """How long it looks for a master that is gone; None: as long as a restart on the same host takes."""


def module_of(kind: RoleKind) -> str:
    return MODULES[kind]


def arguments_of(kind: RoleKind, plan: RunPlan, *, root: str = "") -> tuple[str, ...]:
    """Command line after the module. All users of a machine can read it, so secrets travel another way."""
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
    threads = plan.threads_per_worker  # more than it has cores would only stand in each other's way
    threads = threads if limits.cpu is None else max(1, min(threads, math.ceil(limits.cpu)))
    return {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
