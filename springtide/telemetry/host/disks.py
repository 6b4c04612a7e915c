"""Chooses SQLite's journal mode by the file system, and checks that a folder accepts files.

SQLite's WAL mode has its index in shared memory. On a network file system, processes on two machines would therefore
corrupt the database. On network file systems, SQLite uses the rollback journal. The check writes a file, so it also
detects quotas and failing disks.
"""

import os
import pathlib
import re

MOUNTS = pathlib.Path("/proc/self/mountinfo")
NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|smb3|smbfs|virtiofs|wekafs"
    r"|fuse\.(?!fuse-overlayfs$).*"
)
"""Types of file systems that several machines, or a machine and its guests, can mount at the same time. Most FUSE
file systems are among them, such as sshfs, gcsfuse and JuiceFS.
"""

PROBE_BYTES = 1 << 17
"""Bytes that a master needs to begin its journal and its log."""


def sqlite_journal_mode(path: pathlib.Path) -> str:
    """Return the journal mode in which a database at this path is safe for all its users."""
    return "truncate" if NETWORK.fullmatch(kind_of(path)) else "wal"


def kind_of(path: pathlib.Path) -> str:
    try:
        mounts = MOUNTS.read_text("utf-8", errors="surrogateescape")
        return kind_in(mounts, os.path.realpath(path))
    except OSError:
        return ""


def kind_in(mounts: str, path: str) -> str:
    """Return the type of the file system that an absolute path is on: the newest mount that is nearest above the path.
    `mounts` has the format of proc(5)."""
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
    """Decode a path in which the kernel has written space, tab, newline and backslash as octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def write_error(folder: pathlib.Path) -> str:
    """Return the reason why a file of a few pages cannot be written there; empty if it can be written."""
    path = folder / f".room.{os.getpid()}"
    try:
        with open(path, "wb", buffering=0) as file:
            left = PROBE_BYTES
            while left:
                left -= file.write(bytes(left))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        path.unlink(missing_ok=True)
    return ""
