"""Restore a lost server's slots from the newest complete checkpoint, before its next incarnation serves.

In: the checkpoint and the slots that the master names. Out: the store with these slots, and the checkpoint that was
used. If a checkpoint is damaged, the restore falls back to an older one, or to a copy in storage. Next:
`server.__main__` tells the master, whose ledger returns to that checkpoint.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from springtide import _native, errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FileStore
from springtide.rpc.messages import messages
from springtide.server import restore

log = logging.getLogger(__name__)

NO_COPY = (
    ". Files on a disk that only one server sees are lost with it, unless there is a mirror, or a checkpoint URL: "
    "what is on the disks of the other servers is still there"
)


class RestoredFrom(NamedTuple):
    """Checkpoint that the slots were restored from."""

    where: str
    number: int
    spared: tuple[str, ...] = ()
    """Files read from a mirror with the reason, one sentence each."""
    unusable: tuple[str, ...] = ()
    """Newer checkpoints that could not be used with the reason, one sentence each."""


def bring_back(store: _native.Store, wanted: messages.RestoreOrder, scattered: FileStore | None = None) -> RestoredFrom:
    """Import the slots from the named checkpoint, or else from the newest readable checkpoint.

    The named folder is in memory if its pages have outlived the server; `fallback` is storage. If servers have local
    disks, `scattered` replaces the folder.
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
        troubles += [each for each in looked.troubles if each not in troubles]
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
    store: _native.Store, source: RestoredFrom, wanted: messages.RestoreOrder, places: Mapping[str, str | FileStore]
) -> RestoredFrom:
    place = places[source.where]
    done = restore.restore(store, place, source.number, wanted.slots, wanted.lineage)
    log.info("restored from checkpoint %d in %s: %s", source.number, source.where, done)
    spared = tuple(f"{file} was read from its mirror: {why}" for file, why in done.spared.items())
    for each in spared:
        log.warning("%s", each)
    return source._replace(spared=spared)


def _learn_tables(store: _native.Store, wanted: messages.RestoreOrder, place: str | FileStore) -> RestoredFrom:
    """Declare the tables for a server without slots. It restores nothing, so the ledger need not roll back."""
    try:
        restore.restore(store, place, wanted.number, (), wanted.lineage)
    except (errors.BadInput, OSError) as error:
        log.warning("checkpoint %d in %s: its tables cannot be read: %s", wanted.number, wanted.where, error)
    return RestoredFrom("", 0)
