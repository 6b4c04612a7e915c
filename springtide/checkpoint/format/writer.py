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
    """Remove older manifests, then files that no kept manifest names. Return the removed names.

    Files newer than the newest manifest in `kept` are being written, and stay. Files up to the abandoned checkpoint
    `given_up` are removed. If another run now owns the place, `only_run` is this run's id, and only its segment files
    are removed.
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
    """Return the checkpoint of a file, complete or partial; None if the file is not ours."""
    whole = name.removesuffix(".part")
    if (number := number_of(whole)) is not None:
        return number
    return number_in(whole.removesuffix(".seg") + ".seg") if whole != name or name.endswith(".seg") else None
