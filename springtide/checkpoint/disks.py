"""Whether a server sees the job's folder, or has a disk of its own: the master leaves a mark there, and servers look.

In: the folder and the mark that the master names. Out: a `Disk`: where this server writes its part of checkpoints, and
the machine it is on, if nobody else can read there. Next: `embedding.saving` writes, `embedding.mirroring` gives away.
"""

import contextlib
import errno
import os
import pathlib
import secrets
import stat
import tempfile
from typing import NamedTuple

from springtide import errors

MARK = "mark"


class Disk(NamedTuple):
    """Where a server writes."""

    folder: pathlib.Path
    """That of the job; the server's own files lie in a folder with its name in there, unless all share it."""
    node: str = ""
    """The machine, where nobody on another one sees the folder; empty: all see it."""


def mark(folder: pathlib.Path) -> str:
    """The mark of a folder, made if there is none. Empty: it cannot be written, which saving will tell better."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return (folder / MARK).read_text("ascii")
        except FileNotFoundError:
            made = secrets.token_hex(8)
            unfinished = folder / f"{MARK}.{made}"
            unfinished.write_text(made, "ascii")
            unfinished.rename(folder / MARK)
            return made
    return ""


def found(folder: str, marked: str, *, scratch: str = "", node: str = "") -> Disk:
    """The job's folder, if its mark is seen and no other is given; else one of this machine, for this job alone."""
    if not scratch and (not marked or _seen(pathlib.Path(folder)) == marked):
        return Disk(pathlib.Path(folder))
    base = pathlib.Path(scratch) if scratch else pathlib.Path(tempfile.gettempdir()) / f"springtide-{os.getuid()}"
    own = base / (marked or "unmarked")
    try:
        if not scratch:
            _keep_private(base)
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise errors.BadInput(
            f"this server does not see the job's folder {folder}, and cannot write to {own} either: "
            f"{error.strerror or error}. Set SPRINGTIDE_SCRATCH to a folder of this machine that it may write to."
        ) from error
    return Disk(own, node or machine())


def machine() -> str:
    """The same for all processes of one machine, until it starts again."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return os.uname().nodename


def _keep_private(base: pathlib.Path) -> None:
    """Make a folder in one that everybody may write to; one that another user has made there is not trusted."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = base.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{base} is another user's")


def _seen(folder: pathlib.Path) -> str:
    try:
        return (folder / MARK).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
