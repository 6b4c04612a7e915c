"""Whether a server sees the job's folder, or has a disk of its own: the run's claim is there, and servers look for it.

In: the folder and the claim that the master names. Out: a `Disk`: where this server writes its part of checkpoints, and
the machine it is on, if nobody else can read there. Next: `server.checkpoints` writes, `server.mirror` gives away.
"""

import errno
import os
import pathlib
import stat
import tempfile
from typing import NamedTuple

from springtide import errors
from springtide.checkpoint.format.storage import Folder
from springtide.checkpoint.transfer import claims


class Disk(NamedTuple):
    """Where a server writes."""

    folder: pathlib.Path
    """That of the job; the server's own files lie in a folder with its name in there, unless all share it."""
    node: str = ""
    """The machine, where nobody on another one sees the folder; empty: all see it."""


def found(folder: str, run: str, claim: str, *, scratch: str = "", node: str = "") -> Disk:
    """The job's folder, if the run's claim is seen there and no other is given; else one of this machine, for this run
    alone. Without a claim the folder could not be written to, which saving tells better.
    """
    if not scratch and (not claim or _sees(folder, run, claim)):
        return Disk(pathlib.Path(folder))
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
    return Disk(own, node or claims.machine())


def _keep_private(base: pathlib.Path) -> None:
    """Make a folder in one that everybody may write to; one that another user has made there is not trusted."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = base.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{base} is another user's")


def _sees(folder: str, run: str, claim: str) -> bool:
    try:
        seen = claims.read(Folder(pathlib.Path(folder)), claim)
    except OSError:
        return False
    return seen is not None and seen.run == run
