"""Detects network file systems, and chooses SQLite's journal mode for a path.

In: a path, and the mounts that Linux lists. Out: SQLite's journal mode. WAL keeps its index in shared memory, which
works only within one machine. On a network file system, processes on two machines would corrupt a database in WAL mode.
There SQLite uses the rollback journal, which needs only locks and costs one disk write for each transaction. Next:
`master.core.journal`, `brain.store.store`.
"""

import os
import pathlib

MOUNTS = pathlib.Path("/proc/self/mountinfo")
NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "pvfs2",
    "smb3",
    "smbfs",
    "virtiofs",
    "wekafs",
}
"""File systems that several machines, or a machine and its guests, can mount at once."""
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""FUSE file systems that are local disks. Most others (sshfs, gcsfuse, JuiceFS) are remote."""


def sqlite_journal_mode(path: pathlib.Path) -> str:
    """The journal mode in which a database at this path is safe, whoever opens it."""
    return "truncate" if is_network(kind_of(path)) else "wal"


def is_network(kind: str) -> bool:
    """Whether processes of other machines may see such a file system too."""
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def kind_of(path: pathlib.Path) -> str:
    """The kind of file system that a path lies on, such as ext4; empty: nobody can tell."""
    try:
        mounts = MOUNTS.read_text("utf-8", errors="surrogateescape")
        return kind_in(mounts, os.path.realpath(path))
    except OSError:
        return ""


def kind_in(mounts: str, path: str) -> str:
    """The kind of the newest mount of those that are nearest above an absolute path; `mounts` as in proc(5)."""
    best, found = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), after.split(" ")[0]
    return found


def _unescaped(text: str) -> str:
    """A path as it is: the kernel writes a blank, a tab, a line's end and a backslash as octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
