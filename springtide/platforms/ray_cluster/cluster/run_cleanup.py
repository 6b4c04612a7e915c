"""Run folders of jobs that are over, on the node where their steward was: kept for a week, then removed.

In: a steward, at its job's end (`mark`) and at the begin of another's (`sweep`). They are not removed at once: a job's
last checkpoints may be nowhere else. Folders that a job names itself (`ray.runFolder`) are the user's to keep.
"""

import contextlib
import pathlib
import shutil

BASE = "/tmp/springtide-ray"
OVER = "over"
"""A file in the folder of a job that is over."""
KEPT_S = 7 * 86_400.0
LOST_S = 30 * 86_400.0
"""Of a job whose end nobody saw: its cluster went down with it."""


def mark(folder: pathlib.Path) -> None:
    """The job is over."""
    with contextlib.suppress(OSError):
        (folder / OVER).touch()


def sweep(base: pathlib.Path, *, at: float) -> list[pathlib.Path]:
    """Remove what is too old, as far as it is ours; what was removed."""
    gone = []
    for folder in base.glob("*"):
        with contextlib.suppress(OSError):
            over = folder / OVER
            old = at - over.stat().st_mtime > KEPT_S if over.exists() else at - newest(folder) > LOST_S
            if old:
                shutil.rmtree(folder)
                gone.append(folder)
    return gone


def newest(folder: pathlib.Path) -> float:
    """When anything right in it was written last: a job that runs writes its story all the time."""
    inner = [folder, *folder.glob("*"), *folder.glob("logs/*")]
    return max(path.stat().st_mtime for path in inner)
