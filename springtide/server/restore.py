"""Restore slots of a checkpoint into an empty store.

In: the location of the checkpoint, its number, and the slots to restore. Out: the store with its tables declared and
the slots as they were saved, batch identities included. Next: `server.__main__` reports that the server is ready.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from springtide import _native
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FileStore, open_store
from springtide.domain.model.checkpoints import Lineage
from springtide.embedding.lookup.specs import native_spec


class Restored(NamedTuple):
    """Amount of data that a restore has read, and its duration."""

    slots: int
    bytes: int
    seconds: float
    spared: dict[str, str]
    """Errors of damaged files, by file name. The restore read the mirrors of these files."""

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.bytes / 2**20:.1f} MiB in {self.seconds:.2f} s"


def restore(
    store: _native.Store, where: str | FileStore, number: int, slots: Iterable[int], lineage: Lineage | None = None
) -> Restored:
    """Declare the tables of the checkpoint and import these slots; BadInput if it is torn or of another run."""
    began = time.monotonic()
    place = open_store(where) if isinstance(where, str) else where
    slots = tuple(slots)
    manifest = checkpoint_io.read(place, number, slots, lineage=lineage)
    for spec in manifest.tables:
        store.declare(native_spec(spec))
    count = size = 0
    spared: dict[str, str] = {}
    for slot in slots:
        for image in checkpoint_io.images(place, manifest, slot, spared):
            store.import_slot(image)
            size += len(image)
        count += 1
    return Restored(count, size, time.monotonic() - began, spared)
