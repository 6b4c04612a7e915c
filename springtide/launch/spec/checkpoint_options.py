"""What a job is told about checkpoints: how often, where, and which one to go on from.

In: an `ElasticJob`. Out: `CheckpointRules` of the job, and the manifest it goes on from. For `launch.spec.resolve`.
"""

import pathlib
import time
from collections.abc import Callable

from springtide import errors
from springtide.checkpoint.format import reader
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import place_of
from springtide.domain.core import durations
from springtide.domain.model.checkpoints import EVERY_S, CheckpointRules
from springtide.domain.spec.elastic_job import CheckpointWish


def rules(
    keeping: CheckpointWish, *, servers: int = 1, resume: str = "", resumed: Manifest | None = None, exports: str = ""
) -> CheckpointRules:  # fmt: skip
    """How the job keeps checkpoints: every 30 s unless it is told otherwise, or wants `exports`, which are made of
    checkpoints, more often."""
    every_s, url = keeping.every_s, keeping.url
    often_s = durations.seconds("export_every", exports) if exports else EVERY_S
    if every_s is not None and exports and often_s < every_s:
        raise errors.BadInput(
            f"following.exportEvery {exports} (--export-every) with checkpoints every {every_s:g} s, which exports are "
            f"made of: leave out checkpoints.everyS (--checkpoint-every), or give {often_s:g} or less"
        )
    if url and every_s == 0:
        raise errors.BadInput(
            "checkpoints.url (--checkpoint-url) without checkpoints: leave out everyS 0 (--checkpoint-every 0)"
        )
    if keeping.mirror and every_s == 0:
        raise errors.BadInput(
            "checkpoints.mirror (--mirror) without checkpoints: leave out everyS 0 (--checkpoint-every 0)"
        )
    if keeping.mirror and servers < 2:
        raise errors.BadInput(
            "checkpoints.mirror (--mirror) with one server: no other could keep a copy; ask for 2 servers or more"
        )
    if keeping.folder and pathlib.Path(keeping.folder).is_file():
        raise errors.BadInput(f"checkpoints.folder (--checkpoint-dir) {keeping.folder} is a file; wanted a folder")
    if url and "://" not in url:
        url = f"file://{absolute(url)}"
    return CheckpointRules(
        every_s=min(EVERY_S, often_s) if every_s is None else every_s,
        folder=str(pathlib.Path(keeping.folder).absolute()) if keeping.folder else "",
        resume=absolute(place_of(resume).where) if resumed else "",
        resume_number=resumed.number if resumed else 0,
        resume_run=resumed.run if resumed else "",
        numbers_after=max(reader.numbers(place_of(resume))) if resumed else 0,
        url=url.rstrip("/"),
        upload_every_s=keeping.upload_every_s,
        mirror=keeping.mirror,
    )


def absolute(where: str) -> str:
    """A path or URL that means the same in every process."""
    return where if "://" in where else str(pathlib.Path(where).absolute())


def find_checkpoint(where: str, say: Callable[[str], None]) -> Manifest | None:
    """The newest whole checkpoint of what `resume` names; a damaged one is said, and the one before is used."""
    if not where:
        return None
    found = reader.latest(where)
    for trouble in found.troubles:
        say(trouble)
    if found.manifest is None:
        raise errors.MissingFile(
            f"resume {where}: no checkpoint there that could be used; give a run's name, its folder or a URL"
        )  # fmt: skip
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.manifest.begun_at))
    said = f"job {found.manifest.job}, {made}, {found.manifest.samples:,} samples trained"
    say(f"going on from checkpoint {found.manifest.number} in {found.place.where} ({said})")
    return found.manifest
