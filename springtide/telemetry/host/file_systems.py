"""Which kind of file system a path lies on, and how SQLite may keep its journal there.

In: a path, and what Linux tells of mounts. Out: SQLite's journal mode. WAL keeps its index in memory that all users of
a database share, which only processes of one machine can: on a network file system two of them on different machines
would damage it. There the rollback journal is used, which needs nothing but locks and costs a write to the disk each
time. Next: `master.core.journal`, `brain.store.store`.
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
"""Kinds that several machines, or a machine and its guests, may have mounted at once."""
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""Kinds of FUSE that are a disk of this machine all the same. The others (sshfs, gcsfuse, JuiceFS) are mostly not."""


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
