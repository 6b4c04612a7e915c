"""Pure. What the process of a role is told, on whatever host: its module, arguments, settings and other variables.

In: `platforms.agent.agent` for each life it starts; whoever makes pods from a plan asks the same. Out: a command and
what goes into its environment, so that a role cannot tell which platform started it. Next:
`platforms.agent.platform_api.RoleLaunch`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, RoleKind
from springtide.platforms.agent.run_plan import RunPlan

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
    """What is run as `python -m`."""
    return MODULES[kind]


def arguments_of(kind: RoleKind, plan: RunPlan, *, root: str = "") -> tuple[str, ...]:
    """The command line after the module, which every user of a machine can read: the job's spec and the script's
    arguments are handed over otherwise. `root` is the run's folder, which only the master needs."""
    if kind is RoleKind.MASTER:
        return (root, plan.host, str(plan.port))
    return (plan.script,) if kind is RoleKind.WORKER else ()


def settings_of(
    life: Life, there: RoleEndpoints, *, debug: bool = False, report_usage: bool = False,
    script: Mapping[str, str] | None = None, arguments: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """Fields of `config.Settings`; as `SPRINGTIDE_NAME` they make up the environment. `script`: those that only
    processes with the user's code get, see `domain.spec.script_settings`; `arguments`: of the script, for workers."""
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
    """Variables of other programs, unless the user has set them."""
    threads = plan.threads_per_worker  # more than it has cores would only stand in each other's way
    threads = threads if limits.cpu is None else max(1, min(threads, math.ceil(limits.cpu)))
    return {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
