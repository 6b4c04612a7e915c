"""Restores a lost server's slots from the newest complete checkpoint, before the server's next incarnation serves.

If a checkpoint is damaged, the restore uses an older checkpoint or a copy in storage. Next: `server.__main__` reports
the checkpoint to the master, which rolls its ledger back to that checkpoint.
"""

import logging
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from springtide import _native, errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FileStore, open_store
from springtide.domain.model.checkpoints import Lineage
from springtide.embedding.lookup.table_client import native_spec
from springtide.rpc.messages.types import RestoreOrder

log = logging.getLogger(__name__)
NO_COPY = (
    ". If a server's own disk is lost, its files are lost too, unless there is a mirror, or a checkpoint URL: "
    "files on the disks of other servers still exist"
)


class RestoredFrom(NamedTuple):
    """Checkpoint from which the slots were restored."""

    where: str
    number: int
    spared: tuple[str, ...] = ()
    """Files that were read from a mirror, with the reason, one sentence each."""
    unusable: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, with the reason, one sentence each."""


def bring_back(store: _native.Store, wanted: RestoreOrder, scattered: FileStore | None = None) -> RestoredFrom:
    """Import the slots from the checkpoint that `wanted` names, or else from the newest readable checkpoint.

    If the folder has no usable checkpoint, restore from `fallback`, a copy in storage. If servers have local disks,
    `scattered` replaces the folder.
    """
    places: dict[str, str | FileStore] = {where: where for where in (wanted.where, wanted.fallback) if where}
    if scattered is not None and wanted.where == scattered.where:
        places[wanted.where] = scattered
    if not wanted.slots:
        return _learn_tables(store, wanted, places[wanted.where])
    first = RestoredFrom(wanted.where, wanted.number)
    try:
        return _import(store, first, wanted, places)
    except (errors.BadInput, OSError) as error:
        troubles = [f"checkpoint {first.number} in {first.where} cannot be used: {error}"]
    log.warning("%s", troubles[0])
    found: list[RestoredFrom] = []
    for where, place in places.items():
        looked = checkpoint_io.latest(place, wanted.slots, lineage=wanted.lineage)
        troubles += [trouble for trouble in looked.troubles if trouble not in troubles]
        if looked.manifest is not None:
            found.append(RestoredFrom(where, looked.manifest.number))
    if not found:
        hint = "" if scattered is None or wanted.fallback else NO_COPY
        raise errors.JobFailed("no checkpoint has its slots: " + "; ".join(troubles or ["there is none"]) + hint)
    for slot in wanted.slots:
        store.clear_slot(slot)
    newest = max(found, key=lambda source: source.number)
    return _import(store, newest, wanted, places)._replace(unusable=tuple(troubles))


def _import(
    store: _native.Store, source: RestoredFrom, wanted: RestoreOrder, places: Mapping[str, str | FileStore]
) -> RestoredFrom:
    place = places[source.where]
    damaged = restore(store, place, source.number, wanted.slots, wanted.lineage)
    log.info("restored from checkpoint %d in %s", source.number, source.where)
    spared = tuple(f"{file} was read from its mirror: {why}" for file, why in damaged.items())
    for note in spared:
        log.warning("%s", note)
    return source._replace(spared=spared)


def _learn_tables(store: _native.Store, wanted: RestoreOrder, place: str | FileStore) -> RestoredFrom:
    """Declare the tables on a server that has no slots. A server without slots restores nothing, so the ledger does not
    roll back.
    """
    try:
        restore(store, place, wanted.number, (), wanted.lineage)
    except (errors.BadInput, OSError) as error:
        log.warning("checkpoint %d in %s: its tables cannot be read: %s", wanted.number, wanted.where, error)
    return RestoredFrom("", 0)


def restore(
    store: _native.Store, where: str | FileStore, number: int, slots: Collection[int], lineage: Lineage | None = None
) -> dict[str, str]:
    """Declare the tables of the checkpoint and import these slots. Raise BadInput if the checkpoint is torn or
    belongs to another run.

    Return the errors of damaged files, by file name. The restore read the mirrors of these files.
    """
    began = time.monotonic()
    place = open_store(where) if isinstance(where, str) else where
    manifest = checkpoint_io.read(place, number, slots, lineage=lineage)
    for spec in manifest.tables:
        store.declare(native_spec(spec))
    size = 0
    spared: dict[str, str] = {}
    for slot in slots:
        for image in checkpoint_io.images(place, manifest, slot, spared):
            store.import_slot(image)
            size += len(image)
    seconds = time.monotonic() - began
    log.info("checkpoint %d: %d slots, %.1f MiB in %.2f s", number, len(slots), size / 2**20, seconds)
    return spared
