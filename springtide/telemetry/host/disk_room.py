"""Checks that a folder accepts files, before a process that must write there is started.

In: a run's folder. Out: the reason why nothing can be written, or an empty text. The check writes a file. It therefore
also notices a quota, a read-only mount and a failing disk, which the count of free bytes does not show.
"""

import os
import pathlib

BYTES = 1 << 17
"""Bytes that a master needs to begin its journal and its log."""


def lacking(folder: pathlib.Path) -> str:
    """Return why a file of some pages cannot be written there; empty if it can."""
    path = folder / f".room.{os.getpid()}"
    try:
        with open(path, "wb", buffering=0) as file:
            left = BYTES
            while left:
                left -= file.write(bytes(left))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        path.unlink(missing_ok=True)
    return ""
