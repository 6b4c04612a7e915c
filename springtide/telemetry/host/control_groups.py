"""Reads and writes the files of one control group: limits, usage, out-of-memory kills and members.

In: folders made by `platforms.local.process_group`, or by a container's host (`telemetry.host.usage`). `GroupV1` has a
folder for each controller, `GroupV2` one folder for all controllers.
"""

import contextlib
import os
import pathlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from springtide.domain.core.resources import ProcessLimits, Usage

PERIOD_US = 100_000  # the kernel's default, in µs: a process over its quota is throttled for the rest of the period

LEAST_SHARES, LEAST_WEIGHT = 2, 1
"""Lowest CPU shares (version 1) and weight (version 2). The defaults of other groups are 1024 and 100."""


ENDLESS = 1 << 60
"""Limit in bytes from which version 1 means no limit. The kernel reports the largest number of pages."""


class ControlGroup(Protocol):
    """Operations that a platform needs of a control group. A missing file reads as empty."""

    def can_hold(self, limits: ProcessLimits) -> bool:
        """Return True if the group has the controllers for these limits. A group that only counts cannot limit CPU."""
        ...

    def hold_to(self, limits: ProcessLimits) -> None:
        """Write the limits. Raise OSError without permission."""
        ...

    def admit(self, pid: int) -> None:
        """Move a process into the group. Its future children follow."""
        ...

    def usage(self) -> Usage:
        """Return CPU and memory of all members, including those that have exited."""
        ...

    def limits(self) -> ProcessLimits:
        """Return the present limits."""
        ...

    def oom_kills(self) -> int:
        """Return the kernel's count of out-of-memory kills in the group."""
        ...

    def members(self) -> set[int]:
        """Return the process ids in the group."""
        ...

    def folders(self) -> tuple[pathlib.Path, ...]:
        """Return the folders to remove at the end."""
        ...


class GroupV1:
    """A version 1 control group: a folder in each of several hierarchies."""

    def __init__(self, folder_of: Mapping[str, pathlib.Path]) -> None:
        self._folder_of = dict(folder_of)

    def can_hold(self, limits: ProcessLimits) -> bool:
        return ("cpu" in self._folder_of or limits.cpu is None) and (
            "memory" in self._folder_of or limits.memory is None
        )

    def hold_to(self, limits: ProcessLimits) -> None:
        """Write the CPU quota for each period, and the limits on memory and on memory with swap."""
        if limits.cpu is not None and (cpu := self._folder_of.get("cpu")):
            write(cpu / "cpu.cfs_period_us", PERIOD_US)
            write(cpu / "cpu.cfs_quota_us", int(limits.cpu * PERIOD_US))
        if limits.low and (cpu := self._folder_of.get("cpu")):
            write(cpu / "cpu.shares", LEAST_SHARES)
        if limits.memory is not None and (memory := self._folder_of.get("memory")):
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            if read_number(self._folder_of, "memory", names[0]) < limits.memory:
                names.reverse()  # the limit on memory alone may never exceed the limit with swap
            for name in names:
                if "memsw" not in name or (memory / name).exists():
                    write(memory / name, limits.memory)

    def admit(self, pid: int) -> None:
        for folder in self.folders():
            write(folder / "cgroup.procs", pid)

    def usage(self) -> Usage:
        """Read usage: `cpuacct.usage` is in nanoseconds, `rss` is anonymous memory, `shmem` is shared memory."""
        memory = read_table(self._folder_of, "memory", "memory.stat")
        return Usage(
            cpu_s=read_number(self._folder_of, "cpuacct", "cpuacct.usage") / 1e9,
            memory=memory.get("total_rss", 0) + memory.get("total_shmem", 0),
            peak=read_number(self._folder_of, "memory", "memory.max_usage_in_bytes"),
            throttled_s=read_table(self._folder_of, "cpu", "cpu.stat").get("nr_throttled", 0) * PERIOD_US / 1e6,
        )

    def limits(self) -> ProcessLimits:
        """Read the limits. A quota of -1, or a huge memory limit, means no limit."""
        period = read_number(self._folder_of, "cpu", "cpu.cfs_period_us")
        quota = read_number(self._folder_of, "cpu", "cpu.cfs_quota_us")
        memory = read_number(self._folder_of, "memory", "memory.limit_in_bytes")
        return ProcessLimits(
            cpu=quota / period if quota and period else None, memory=memory if 0 < memory < ENDLESS else None
        )

    def oom_kills(self) -> int:
        return read_table(self._folder_of, "memory", "memory.oom_control").get("oom_kill", 0)

    def members(self) -> set[int]:
        return {pid for folder in self.folders() for pid in read_members(folder)}

    def folders(self) -> tuple[pathlib.Path, ...]:
        """Return the folders without duplicates, because hierarchies may be mounted together."""
        return tuple(dict.fromkeys(self._folder_of.values()))


class GroupV2:
    """A version 2 control group: a folder in the unified hierarchy."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._here = {"": folder}

    def can_hold(self, limits: ProcessLimits) -> bool:
        return ((self._folder / "cpu.max").exists() or limits.cpu is None) and (
            (self._folder / "memory.max").exists() or limits.memory is None
        )

    def hold_to(self, limits: ProcessLimits) -> None:
        """Write the limits: `cpu.max` is quota and period. Swap is disabled, because it would hide a shortage of
        memory.
        """
        if limits.cpu is not None:
            write(self._folder / "cpu.max", f"{int(limits.cpu * PERIOD_US)} {PERIOD_US}")
        if limits.low and (self._folder / "cpu.weight").exists():
            write(self._folder / "cpu.weight", LEAST_WEIGHT)
        if limits.memory is not None:
            write(self._folder / "memory.max", limits.memory)
            if (self._folder / "memory.swap.max").exists():
                write(self._folder / "memory.swap.max", 0)

    def admit(self, pid: int) -> None:
        write(self._folder / "cgroup.procs", pid)

    def usage(self) -> Usage:
        """Read usage. `cpu.stat` exists even without the CPU controller."""
        memory, cpu = read_table(self._here, "", "memory.stat"), read_table(self._here, "", "cpu.stat")
        return Usage(
            cpu_s=cpu.get("usage_usec", 0) / 1e6,
            memory=memory.get("anon", 0) + memory.get("shmem", 0),
            peak=read_number(self._here, "", "memory.peak"),
            throttled_s=cpu.get("nr_throttled", 0) * PERIOD_US / 1e6,
        )

    def limits(self) -> ProcessLimits:
        """Read the limits: `cpu.max` is quota and period, and `max` means no limit."""
        quota, _, period = _read(self._here, "", "cpu.max").strip().partition(" ")
        memory = read_number(self._here, "", "memory.max")
        return ProcessLimits(
            cpu=int(quota) / int(period) if quota.isdigit() and period.isdigit() else None, memory=memory or None
        )

    def oom_kills(self) -> int:
        return read_table(self._here, "", "memory.events").get("oom_kill", 0)

    def members(self) -> set[int]:
        return set(read_members(self._folder))

    def folders(self) -> tuple[pathlib.Path, ...]:
        return (self._folder,)


def kill_members(group: ControlGroup) -> None:
    """Kill all processes that a role left in its group."""
    for pid in group.members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def write(path: pathlib.Path, value: int | str) -> None:
    """Write a value with one write call, as the kernel requires."""
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


def read_number(folder_of: Mapping[str, pathlib.Path], controller: str, name: str) -> int:
    """Read a file that contains one number."""
    text = _read(folder_of, controller, name).strip()
    return int(text) if text.isdigit() else 0


def read_table(folder_of: Mapping[str, pathlib.Path], controller: str, name: str) -> dict[str, int]:
    """Read a file with a name and a number on each line."""
    pairs = (line.split() for line in _read(folder_of, controller, name).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_members(folder: pathlib.Path) -> list[int]:
    """Return the process ids in a group."""
    return [int(pid) for pid in _read({"": folder}, "", "cgroup.procs").split()]


def _read(folder_of: Mapping[str, pathlib.Path], controller: str, name: str) -> str:
    folder = folder_of.get(controller)
    if folder is None:
        return ""
    try:
        return (folder / name).read_text()
    except OSError:  # removed in the meantime, or not counted by this kernel
        return ""


PROC_SELF = pathlib.Path("/proc/self")
CONTROLLERS = ("cpu", "cpuacct", "memory")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: its visible part, and the mount point."""

    root: str
    at: pathlib.Path
    controllers: frozenset[str]
    version: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """This process's own group: a folder for each available controller (`cpuacct` only in version 1)."""

    version: int = 0
    """Version of control groups: 1 or 2; 0 if there are none."""
    folders: Mapping[str, pathlib.Path] = field(default_factory=dict)


def find_hierarchy(proc_self: pathlib.Path = PROC_SELF) -> Hierarchy:
    """Find version 2 if it has the controllers, else version 1. The kernel assigns each controller to one version."""
    try:
        mounts = parse_mounts((proc_self / "mountinfo").read_text())
        paths = parse_paths((proc_self / "cgroup").read_text())
    except OSError:
        return Hierarchy()
    for mount in mounts:
        if mount.version == 2 and "" in paths:
            folder = group_folder(mount, paths[""])
            if offered := offered_by(folder) & {"cpu", "memory"}:
                return Hierarchy(2, {name: folder for name in sorted(offered)})
    folders = {
        name: group_folder(mount, paths[name])
        for name in CONTROLLERS
        for mount in mounts
        if mount.version == 1 and name in mount.controllers and name in paths
    }
    return Hierarchy(1, folders) if folders else Hierarchy()


def parse_mounts(text: str) -> list[Mount]:
    """Parse the control group lines of a mountinfo file: `36 35 0:31 /root /at options - type source superoptions`."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[:1] == ["cgroup2"]:
            found.append(Mount(fields[3], pathlib.Path(fields[4]), frozenset(), 2))
        elif kind[:1] == ["cgroup"]:
            found.append(Mount(fields[3], pathlib.Path(fields[4]), frozenset(kind[2].split(",")), 1))
    return found


def parse_paths(text: str) -> dict[str, str]:
    """Parse the groups of a process by controller, such as `4:memory:/a/b`. Version 2 (`0::/a/b`) has the
    empty name.
    """
    found = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def group_folder(mount: Mount, path: str) -> pathlib.Path:
    """Return the folder of a group in the file system. A container may see only a part of the tree."""
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return mount.at / path.strip("/")


def offered_by(folder: pathlib.Path) -> set[str]:
    """Return the controllers that a version 2 group can delegate."""
    try:
        return set((folder / "cgroup.controllers").read_text().split())
    except OSError:
        return set()
