"""Control groups, versions 1 and 2: finds the group of this process, and reads and writes the files of a group.

Two modules create groups: `platforms.local.process_group` creates groups below this process's own group, so that a
container's limit still applies. Otherwise the host of a container creates the groups (`telemetry.host.usage`).
"""

import contextlib
import os
import pathlib
import signal
from collections.abc import Mapping

import msgspec

from springtide.domain.core.resources import ProcessLimits, Usage

# length of a quota period in µs, which is the kernel's default; a process that exceeds its quota is throttled for the
# rest of the period
PERIOD_US = 100_000
ENDLESS = 1 << 60
"""In version 1, a limit of at least this many bytes means no limit, because the kernel then reports the largest number
of pages."""

PROC_SELF = pathlib.Path("/proc/self")
CONTROLLERS = ("cpu", "cpuacct", "memory")


class _GroupFolders:
    """The folders of a control group, one for each controller. A missing file reads as empty."""

    def __init__(self, folder_of: Mapping[str, pathlib.Path]) -> None:
        self._folder_of = dict(folder_of)

    def admit(self, pid: int) -> None:
        """Move a process into the group. Children that the process starts later are also in the group."""
        for folder in self.folders():
            write(folder / "cgroup.procs", pid)

    def members(self) -> set[int]:
        return {pid for folder in self.folders() for pid in read_members(folder)}

    def folders(self) -> tuple[pathlib.Path, ...]:
        """Return the folders without duplicates. Several hierarchies may be mounted together."""
        return tuple(dict.fromkeys(self._folder_of.values()))

    def _text(self, controller: str, name: str) -> str:
        folder = self._folder_of.get(controller)
        return "" if folder is None else read_text(folder / name)

    def _number(self, controller: str, name: str) -> int:
        text = self._text(controller, name).strip()
        return int(text) if text.isdigit() else 0

    def _table(self, controller: str, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(controller, name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class GroupV1(_GroupFolders):
    """A version 1 control group: a folder in each of several hierarchies."""

    def can_hold(self, limits: ProcessLimits) -> bool:
        """Return True if the group has the controllers for these limits. A group that only counts CPU time cannot limit
        CPU time.
        """
        wanted = {"cpu": limits.cpu, "memory": limits.memory}
        return all(name in self._folder_of or limit is None for name, limit in wanted.items())

    def hold_to(self, limits: ProcessLimits) -> None:
        """Write the CPU quota per period, the limit on memory, and the limit on memory with swap."""
        if limits.cpu is not None and (cpu := self._folder_of.get("cpu")):
            write(cpu / "cpu.cfs_period_us", PERIOD_US)
            write(cpu / "cpu.cfs_quota_us", int(limits.cpu * PERIOD_US))
        if limits.memory is not None and (memory := self._folder_of.get("memory")):
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            if self._number("memory", names[0]) < limits.memory:
                # write the limit with swap first, because the limit on memory alone may never exceed it
                names.reverse()
            for name in names:
                if "memsw" not in name or (memory / name).exists():
                    write(memory / name, limits.memory)

    def usage(self) -> Usage:
        """Read usage: `cpuacct.usage` is in nanoseconds, `rss` is anonymous memory, `shmem` is shared memory."""
        memory = self._table("memory", "memory.stat")
        return Usage(
            cpu_s=self._number("cpuacct", "cpuacct.usage") / 1e9,
            memory=memory.get("total_rss", 0) + memory.get("total_shmem", 0),
            peak=self._number("memory", "memory.max_usage_in_bytes"),
            throttled_s=self._table("cpu", "cpu.stat").get("nr_throttled", 0) * PERIOD_US / 1e6,
        )

    def limits(self) -> ProcessLimits:
        """Read the limits. A quota of -1, or a huge memory limit, means no limit."""
        period, quota = self._number("cpu", "cpu.cfs_period_us"), self._number("cpu", "cpu.cfs_quota_us")
        memory = self._number("memory", "memory.limit_in_bytes")
        return ProcessLimits(
            cpu=quota / period if quota and period else None, memory=memory if 0 < memory < ENDLESS else None
        )

    def oom_kills(self) -> int:
        return self._table("memory", "memory.oom_control").get("oom_kill", 0)


class GroupV2(_GroupFolders):
    """A version 2 control group: a folder in the unified hierarchy."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__({"": folder})
        self._folder = folder

    def can_hold(self, limits: ProcessLimits) -> bool:
        wanted = {"cpu.max": limits.cpu, "memory.max": limits.memory}
        return all((self._folder / name).exists() or limit is None for name, limit in wanted.items())

    def hold_to(self, limits: ProcessLimits) -> None:
        """Write the limits. Swap is disabled, because it would hide a shortage of memory."""
        if limits.cpu is not None:
            write(self._folder / "cpu.max", f"{int(limits.cpu * PERIOD_US)} {PERIOD_US}")
        if limits.memory is not None:
            write(self._folder / "memory.max", limits.memory)
            if (self._folder / "memory.swap.max").exists():
                write(self._folder / "memory.swap.max", 0)

    def usage(self) -> Usage:
        """Read usage. `cpu.stat` exists even without the CPU controller."""
        memory, cpu = self._table("", "memory.stat"), self._table("", "cpu.stat")
        return Usage(
            cpu_s=cpu.get("usage_usec", 0) / 1e6,
            memory=memory.get("anon", 0) + memory.get("shmem", 0),
            peak=self._number("", "memory.peak"),
            throttled_s=cpu.get("nr_throttled", 0) * PERIOD_US / 1e6,
        )

    def limits(self) -> ProcessLimits:
        """Read the limits: `cpu.max` is quota and period, and `max` means no limit."""
        quota, _, period = self._text("", "cpu.max").strip().partition(" ")
        cpu = int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
        return ProcessLimits(cpu=cpu, memory=self._number("", "memory.max") or None)

    def oom_kills(self) -> int:
        return self._table("", "memory.events").get("oom_kill", 0)


ControlGroup = GroupV1 | GroupV2


def kill_members(group: ControlGroup) -> None:
    for pid in group.members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def write(path: pathlib.Path, value: int | str) -> None:
    """Write a value with one write call, as the kernel requires."""
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


def read_members(folder: pathlib.Path) -> list[int]:
    return [int(pid) for pid in read_text(folder / "cgroup.procs").split()]


def read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the group was removed in the meantime, or this kernel does not count the value
        return ""


class Mount(msgspec.Struct, frozen=True):
    """A mounted hierarchy: the part of it that is visible, and its mount point."""

    root: str
    at: pathlib.Path
    controllers: frozenset[str]
    version: int


class Hierarchy(msgspec.Struct, frozen=True):
    """This process's own group, with a folder for each available controller (`cpuacct` only in version 1)."""

    version: int = 0
    """Version of control groups: 1 or 2, or 0 if there are none."""
    folders: Mapping[str, pathlib.Path] = msgspec.field(default_factory=dict)


def find_hierarchy(proc_self: pathlib.Path = PROC_SELF) -> Hierarchy:
    """Find the hierarchy of version 2 if it has the controllers, or else the hierarchy of version 1. The kernel assigns
    each controller to only one of the versions.
    """
    try:
        mounts = parse_mounts((proc_self / "mountinfo").read_text())
        paths = parse_paths((proc_self / "cgroup").read_text())
    except OSError:
        return Hierarchy()
    for mount in mounts:
        if mount.version == 2 and "" in paths:
            folder = group_folder(mount, paths[""])
            if offered := {"cpu", "memory"}.intersection(read_text(folder / "cgroup.controllers").split()):
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
    """Parse the groups of a process by controller: `4:memory:/a/b`. The group of version 2 (`0::/a/b`) has the empty
    name."""
    found = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def group_folder(mount: Mount, path: str) -> pathlib.Path:
    """Return the folder of a group in the file system. A container may see only a part of the tree of groups."""
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return mount.at / path.strip("/")
