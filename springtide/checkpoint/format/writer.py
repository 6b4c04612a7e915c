"""Publishes a manifest, and deletes files that no manifest needs.

In: a manifest whose files are in a folder. Out: the same folder with one more checkpoint; only the last few are kept.
The manifest is written last and renamed, so a reader sees the checkpoint completely or not at all.
"""

from collections.abc import Collection

from springtide.checkpoint.format.manifest import Manifest, encode, number_in, number_of
from springtide.checkpoint.format.storage import FileStore


def publish(place: FileStore, manifest: Manifest) -> None:
    place.write(manifest.name, encode(manifest))


def drop_unneeded(place: FileStore, kept: Collection[Manifest], *, given_up: int = 0, only_run: str = "") -> list[str]:
    """Remove older manifests, then files that no kept one names; returns what was removed.

    Files of checkpoints after the newest of `kept` are being written and stay, except those up to one that was given
    up: nobody will complete it. `only_run`: the place now belongs to another run, and only segment files of this one
    go.
    """
    newest = max([given_up, *(manifest.number for manifest in kept)])
    files = [file for manifest in kept for file in manifest.files]
    needed = {file.name for file in files} | {file.mirror for file in files} | {manifest.name for manifest in kept}
    names = [name for name in place.names() if name not in needed]
    gone = [name for name in names if (_number(name) or newest + 1) <= newest and (not only_run or only_run in name)]
    gone.sort(key=lambda name: number_of(name) is None)
    for name in gone:
        place.remove(name)
    return gone


def _number(name: str) -> int | None:
    """The checkpoint that a file belongs to, finished or not; None: it is not ours."""
    whole = name.removesuffix(".part")
    if (number := number_of(whole)) is not None:
        return number
    return number_in(whole.removesuffix(".seg") + ".seg") if whole != name or name.endswith(".seg") else None
