"""Whether a folder takes files: asked before a process is started that must write there.

In: a run's folder. Out: why nothing can be written, or nothing. A file is written for it: a quota, a read-only mount
and a disk that fails are noticed too, which the count of free bytes does not show.
"""

import os
import pathlib

BYTES = 1 << 17
"""Without so much room a master cannot begin its journal and its log."""


def lacking(folder: pathlib.Path) -> str:
    """Why a file of some pages cannot be written there; empty: it can."""
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
