"""Detects whether a server shares the job's folder or has its own disk, by looking for the run's claim there.

In: the folder and the claim that the master names. Out: a `CheckpointDisk`: where this server writes its part of
checkpoints, and its machine if no other machine can read there. Next: `server.checkpoints` writes, `server.mirror`
serves.
"""

import errno
import os
import pathlib
import stat
import tempfile
from typing import NamedTuple

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import claims


class CheckpointDisk(NamedTuple):
    """Folder in which a server writes checkpoint files."""

    folder: pathlib.Path
    """The job's folder if shared; else a folder of this machine, with a subfolder of the server's name."""
    node: str = ""
    """Machine of the server, if no other machine sees the folder; empty if all see it."""


def find_disk(folder: str, run: str, claim: str, *, scratch: str = "", node: str = "") -> CheckpointDisk:
    """Return the job's folder if the run's claim is visible there and no scratch folder is given. Otherwise return a
    private folder of this machine.

    An empty claim means that the folder was not writable. The job's folder is then returned, because saving reports the
    error better.
    """
    if not scratch and (not claim or _sees(folder, run, claim)):
        return CheckpointDisk(pathlib.Path(folder))
    base = pathlib.Path(scratch) if scratch else pathlib.Path(tempfile.gettempdir()) / f"springtide-{os.getuid()}"
    own = base / run
    try:
        if not scratch:
            _keep_private(base)
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise errors.BadInput(
            f"this server does not see the job's folder {folder}, and cannot write to {own} either: "
            f"{error.strerror or error}. Set SPRINGTIDE_SCRATCH to a folder of this machine that it may write to."
        ) from error
    return CheckpointDisk(own, node or claims.machine())


def _keep_private(base: pathlib.Path) -> None:
    """Create a folder in a world-writable folder. Reject a folder that another user created."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = base.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{base} is another user's")


def _sees(folder: str, run: str, claim: str) -> bool:
    try:
        seen = claims.read(FolderStore(pathlib.Path(folder)), claim)
    except OSError:
        return False
    return seen is not None and seen.run == run
