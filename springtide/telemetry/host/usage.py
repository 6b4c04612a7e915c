"""Measures the CPU and memory that a process uses, from its own control group or from `/proc`.

Platforms whose agent is on another host use `OwnUsage`. A container's group also counts child processes. If other
processes share the group (on a bare host or a Ray node), only the usage of this process counts.
"""

import os
import pathlib
import sys
from collections.abc import Mapping
from dataclasses import replace

from springtide import config
from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage, parse_role
from springtide.telemetry.host import control_groups, gpus
from springtide.telemetry.host.control_groups import ControlGroup, GroupV1, GroupV2

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

PROC = pathlib.Path("/proc")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def of_process(pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> Usage:
    """Return user plus system CPU seconds, and resident memory without mapped files."""
    try:
        stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return Usage()
    fields = (line.partition(":") for line in status.splitlines())  # a line looks like `VmRSS:   123 kB`
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in fields if rest.strip().endswith("kB")}
    return Usage(
        cpu_s=(int(stat[11]) + int(stat[12])) / TICKS_PER_S,
        memory=(kilobytes.get("RssAnon", 0) + kilobytes.get("RssShmem", 0)) << 10,
        peak=kilobytes.get("VmHWM", 0) << 10,
    )


class OwnUsage:
    """CPU and memory that this process uses from now on."""

    def __init__(self, settings: config.Settings, *, proc: pathlib.Path = PROC, pid: int | None = None) -> None:
        self._proc, self._pid = proc, os.getpid() if pid is None else pid
        self._role, self._incarnation = parse_role(settings.member) or Role(RoleKind.WORKER), settings.incarnation
        self._group = own_group(proc, self._pid) if settings.report_usage else None
        self._on = settings.report_usage

    def read(self) -> RoleUsage | None:
        """Return the present usage. Return None if the settings do not request it and this process uses no GPU."""
        gpu = gpus.own_use()
        if not self._on and gpu is None:
            return None
        taken = of_process(self._pid, self._proc) if self._group is None else self._group.usage()
        limits = ProcessLimits() if self._group is None else self._group.limits()
        return replace(of_role(Life(self._role, self._incarnation), taken, limits), gpu=gpu)


def of_role(life: Life, usage: Usage, limits: ProcessLimits) -> RoleUsage:
    return RoleUsage(
        role=life.role,
        incarnation=life.incarnation,
        cpu_s=usage.cpu_s,
        memory=usage.memory,
        cpu_limit=limits.cpu,
        memory_limit=limits.memory,
        throttled_s=usage.throttled_s,
    )


def own_group(proc: pathlib.Path, pid: int) -> ControlGroup | None:
    """Return the control group that belongs to this process alone. Return None if the process shares a group or has
    none."""
    found = control_groups.find_hierarchy(proc / str(pid))
    if not found.folders:
        return None
    group: ControlGroup = GroupV2(next(iter(found.folders.values()))) if found.version == 2 else GroupV1(found.folders)
    return group if alone(group.members(), pid, parents(proc)) else None


def alone(members: set[int], pid: int, parent_of: Mapping[int, int]) -> bool:
    """Return True if every member of a group is this process, one of its ancestors, or one of its descendants."""
    above = set(ancestors(pid, parent_of))
    return pid in members and all(
        member in above or member == pid or pid in ancestors(member, parent_of) for member in members
    )


def ancestors(pid: int, parent_of: Mapping[int, int]) -> list[int]:
    found: list[int] = []
    while (pid := parent_of.get(pid, 0)) and pid not in found:
        found.append(pid)
    return found


def parents(proc: pathlib.Path) -> dict[int, int]:
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):  # the process has just exited
                continue
    return found
