"""Finds the control group of this process, by controller, for cgroup versions 1 and 2.

In: `/proc/self/mountinfo` and `/proc/self/cgroup`. Out: the folder under which `platforms.local.cgroups` makes its
groups. The folder is always below this process's own group, so that a container's limit still holds.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field

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


def find(proc_self: pathlib.Path = PROC_SELF) -> Hierarchy:
    """Find version 2 if it has the controllers, else version 1. The kernel assigns each controller to one version."""
    try:
        mounts = parse_mounts((proc_self / "mountinfo").read_text())
        paths = parse_paths((proc_self / "cgroup").read_text())
    except OSError:
        return Hierarchy()
    for mount in mounts:
        if mount.version == 2 and "" in paths:
            folder = folder_of(mount, paths[""])
            if offered := offered_by(folder) & {"cpu", "memory"}:
                return Hierarchy(2, {name: folder for name in sorted(offered)})
    folders = {
        name: folder_of(mount, paths[name])
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


def folder_of(mount: Mount, path: str) -> pathlib.Path:
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
