"""Where the images of a checkpointer lie in memory, which of them are whole, and who may write. Free of torch.

In: the checkpointer's URL. Out: a folder that a relaunched process finds again, heads of its whole images, a lock.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import tempfile
import time

from springtide import errors
from springtide.checkpoint.checkpointer import state_head

log = logging.getLogger(__name__)

NAMES = ("a.image", "b.image")
SHARED = pathlib.Path("/dev/shm")
LOOK_EVERY_S = 0.05


def folder_for(url: str, chosen: str | os.PathLike[str] | None) -> pathlib.Path:
    """The same for a relaunched process, another for another URL and another user."""
    root = pathlib.Path(chosen) if chosen else (SHARED if SHARED.is_dir() else pathlib.Path(tempfile.gettempdir()))
    return root / f"springtide-{os.getuid()}" / hashlib.sha256(url.encode()).hexdigest()[:16]


def read_head(path: pathlib.Path) -> state_head.Head | None:
    """The head of a whole image, or None."""
    try:
        with open(path, "rb") as file:
            head = state_head.decode(file.read(state_head.BYTES))
            return head if os.fstat(file.fileno()).st_size >= head.image_bytes else None
    except (OSError, errors.BadInput):
        return None


def whole_images(folder: pathlib.Path) -> list[tuple[state_head.Head, pathlib.Path]]:
    """What is in memory, newest first."""
    found = [(head, folder / name) for name in NAMES if (head := read_head(folder / name))]
    return sorted(found, key=lambda one: -one[0].sequence)


def lock(folder: pathlib.Path, *, within_s: float) -> int:
    """The right to write here: a descriptor. A child process that inherits it keeps the right until it ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + within_s
    said = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise errors.BadInput(
                f"another process saves to this URL ({folder} is locked; waited {within_s:g} s). "
                "Give every process a URL of its own, such as URL/rank-0."
            )
        if not said:
            log.info("waiting for the last process that saved to this URL: its saver is still writing")
            said = True
        time.sleep(LOOK_EVERY_S)
