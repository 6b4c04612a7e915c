"""Pure. Who copies which files of a checkpoint to storage, where servers have disks of their own.

In: a manifest, and what servers have turned out not to have. Out: the files of each server, and those that nobody has.
A file in the job's folder is the master's to copy. Next: `master.checkpoint.server_copies`.
"""

from collections.abc import Collection
from typing import NamedTuple

from springtide.checkpoint.format.manifest import File, Manifest, folder_of


class Shares(NamedTuple):
    """Files by server, each with its bytes."""

    of: dict[str, tuple[tuple[str, int], ...]]
    missing: tuple[str, ...]
    """Files that nobody has any more."""


def is_of_server(manifest: Manifest, file: File) -> bool:
    """Whether a file is a server's to copy: no copy of it lies in the job's folder."""
    return all(folder_of(name) in manifest.apart for name in (file.name, file.mirror) if name)


def shares(manifest: Manifest, lacking: Collection[str]) -> Shares:
    """Each file is its own server's to copy, or its buddy's if that one lacks it."""
    of: dict[str, list[tuple[str, int]]] = {}
    missing: list[str] = []
    for file in manifest.files:
        if not is_of_server(manifest, file):
            continue
        names = [name for name in (file.name, file.mirror) if name]
        found = next((name for name in names if name not in lacking), None)
        if found is None:
            missing.append(file.name)
        else:
            of.setdefault(folder_of(found), []).append((found, file.size))
    return Shares({server: tuple(files) for server, files in of.items()}, tuple(missing))
