"""What `springtide run` is told about checkpoints: how often, where, and which one to go on from.

In: options of the command line. Out: `CheckpointRules` of the job, and the manifest it goes on from. For `cli.run`.
"""

import pathlib
import sys
import time

from springtide import errors
from springtide.checkpoint import reader
from springtide.checkpoint.manifest import Manifest
from springtide.checkpoint.places import place_of
from springtide.cli import picture
from springtide.domain.checkpoints import CheckpointRules

EVERY_S = 30.0
UPLOAD_EVERY_S = 600.0


def rules(
    *,
    every_s: float | None,
    folder: str,
    url: str = "",
    upload_every_s: float = UPLOAD_EVERY_S,
    mirror: bool = False,
    servers: int = 1,
    resume: str = "",
    resumed: Manifest | None = None,
) -> CheckpointRules:
    """How the job keeps checkpoints: every 30 s unless it is told otherwise."""
    if url and every_s == 0:
        raise errors.BadInput("--checkpoint-url without checkpoints: give --checkpoint-every too")
    if mirror and every_s == 0:
        raise errors.BadInput("--mirror without checkpoints: give --checkpoint-every too")
    if mirror and servers < 2:
        raise errors.BadInput("--mirror with one server: no other could keep a copy; give --servers 2 or more")
    if url and "://" not in url:
        url = f"file://{absolute(url)}"
    return CheckpointRules(
        every_s=EVERY_S if every_s is None else every_s,
        folder=str(pathlib.Path(folder).absolute()) if folder else "",
        resume=absolute(place_of(resume).where) if resumed else "",
        resume_number=resumed.number if resumed else 0,
        numbers_after=max(reader.numbers(place_of(resume))) if resumed else 0,
        url=url.rstrip("/"),
        upload_every_s=upload_every_s,
        mirror=mirror,
    )


def absolute(where: str) -> str:
    """A path or URL that means the same in every process."""
    return where if "://" in where else str(pathlib.Path(where).absolute())


def find_checkpoint(where: str) -> Manifest | None:
    """The newest whole checkpoint of what `--resume` names; a damaged one is said, and the one before is used."""
    if not where:
        return None
    found = reader.latest(where)
    for trouble in found.troubles:
        print(trouble, file=sys.stderr)
    if found.manifest is None:
        raise errors.MissingFile(
            f"--resume {where}: no checkpoint there that could be used; give a run's folder or URL"
        )
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.manifest.begun_at))
    said = f"job {found.manifest.job}, {made}, {found.manifest.samples:,} samples trained"
    went = f"going on from checkpoint {found.manifest.number} in {found.place.where} ({said})"
    print("\n".join(picture.wrap(went)), file=sys.stderr)
    return found.manifest
