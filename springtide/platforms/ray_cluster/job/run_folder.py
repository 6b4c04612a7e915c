"""Run folder of a job on Ray: terms of masters, restart after its loss, removal when old.

In: `steward`. Folders of finished jobs stay for a week, because they may hold the only copy of the last checkpoints.
Folders that a job names itself (`ray.runFolder`) belong to the user.
"""

import contextlib
import os
import pathlib
import shutil
from dataclasses import replace

from springtide import errors
from springtide.checkpoint.format import reader
from springtide.checkpoint.format.storage import open_store
from springtide.platforms.agent.run_plan import RunPlan
from springtide.telemetry import events

BASE = "/tmp/springtide-ray"
OVER = "over"
"""File that marks the folder of a finished job."""
KEPT_S = 7 * 86_400.0
LOST_S = 30 * 86_400.0
"""Seconds to keep the folder of a job that went down with its cluster."""


def mark(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        (folder / OVER).touch()


def sweep(base: pathlib.Path, *, at: float) -> list[pathlib.Path]:
    """Remove run folders that are too old."""
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
    inner = [folder, *folder.glob("*"), *folder.glob("logs/*")]
    return max(path.stat().st_mtime for path in inner)


def restart_plan(plan: RunPlan, folder: str) -> RunPlan:
    """Return the plan resumed from the newest checkpoint at its URL."""
    rules = plan.spec.checkpoints
    if not rules.url:
        raise errors.JobFailed(
            f"the node that kept the job is gone, and its run folder {folder} with it. With checkpoints.url it would "
            "have begun anew from there; with ray.runFolder on a file system that all nodes see it would have gone on"
        )
    found = reader.latest(rules.url)
    if found.manifest is None:
        raise errors.JobFailed(
            f"the node that kept the job is gone, its run folder {folder} with it, and there is no whole checkpoint in "
            f"{rules.url} yet: {'; '.join(found.troubles) or 'none was copied'}"
        )
    place = open_store(rules.url)
    again = replace(
        rules,
        resume=place.where,
        resume_number=found.manifest.number,
        resume_run=found.manifest.run,
        numbers_after=max(reader.numbers(place)),
    )
    spec = replace(plan.spec, checkpoints=again, slots=found.manifest.slots, seed=found.manifest.seed)
    return replace(plan, spec=spec)


class TermCounter:
    """The newest term of a run's masters."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / "term"

    async def next(self) -> int:
        """Return the next term, written to disk first."""
        term = self._last() + 1
        part = self._path.with_name("term.part")
        try:
            with open(part, "w", encoding="ascii") as file:
                file.write(str(term))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            raise events.as_disk_error(error, self._path) from error
        return term

    def _last(self) -> int:
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise errors.JobFailed(f"{self._path} does not hold the number of the last master: {error}") from None
