"""Clear errors for files of data sets: full disks and missing names.

In: paths and `OSError`s. Out: `DiskFull` with the remaining space, `MissingFile` with the nearest name in the folder.
"""

import contextlib
import difflib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from springtide import errors

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_is_told(path: Path) -> Iterator[None]:
    """Convert a full disk within the block to `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        raise errors.DiskFull(
            f"no room to write under {path} ({free / 2**20:.0f} MiB free); free some or choose another folder"
        ) from error


def existing(path: str | Path) -> Path:
    """Return an existing file; if it is missing, raise with the nearest name in its folder."""
    if not isinstance(path, str | os.PathLike):
        raise errors.BadInput(f"a data set's file is {path!r}: wanted the path of one file")
    wanted = Path(path)
    if wanted.is_file():
        return wanted
    if wanted.is_dir():
        raise errors.MissingFile(f"{wanted} is a folder; give a file in it")
    if not wanted.parent.is_dir():
        raise errors.MissingFile(f"no file {wanted}: its folder {wanted.parent} does not exist")
    names = sorted(entry.name for entry in wanted.parent.iterdir())
    near = difflib.get_close_matches(wanted.name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {str(wanted.parent / near[0])!r}?" if near else f"{wanted.parent} holds {len(names)} others."
    raise errors.MissingFile(f"no file {wanted}. {hint}")
