"""Scratch folder for the rows of an export, which cleans up after killed processes.

In: the target of the export. Out: a folder on the same disk, or in the machine's temporary folder, removed after the
export. The process holds a lock on its folder, which ends with the process. The next export removes unlocked folders. A
scratch folder may be as large as the model. Next: `export.row_spool` fills it.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

from springtide import errors
from springtide.checkpoint.format.storage import FolderStore, UrlStore

SURELY_LOCKED_S = 60.0
"""Age in seconds below which an unlocked folder is kept: its owner may be about to lock it."""


@contextlib.contextmanager
def folder_for(there: FolderStore | UrlStore) -> Iterator[pathlib.Path]:
    """Yield a locked scratch folder; remove unlocked ones that killed exports left behind."""
    prefix = ".export-" if isinstance(there, FolderStore) else "springtide-export-"
    try:
        if isinstance(there, FolderStore):
            there.path.parent.mkdir(parents=True, exist_ok=True)
        parent = there.path.parent if isinstance(there, FolderStore) else pathlib.Path(tempfile.gettempdir())
        for left in parent.glob(f"{prefix}*"):
            take_away(left, now=time.time())
        made = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise errors.BadInput(f"cannot export to {there.where}: {error.strerror}") from error
    lock = os.open(made, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; then no export removes folders there
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def take_away(left: pathlib.Path, *, now: float) -> None:
    with contextlib.suppress(OSError):
        if left.is_symlink() or now - left.stat().st_mtime < SURELY_LOCKED_S:
            return
        lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)
