"""What the next life of a lost server does before it serves: its slots come back from the newest whole checkpoint.

In: the master's word on which checkpoint and which slots. Out: the store with these slots, and which checkpoint it was
in the end: one that is damaged is left for an older one, or for a copy of it in storage. Next:
`embedding.server_process` tells the master, whose ledger goes back to the same checkpoint.
"""

import logging
from typing import NamedTuple

from springtide import _native, errors
from springtide.checkpoint import reader
from springtide.embedding import restoring
from springtide.rpc import messages

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """The checkpoint that slots came from."""

    where: str
    number: int
    spared: tuple[str, ...] = ()
    """What was read from a mirror, and why, each in a sentence."""
    step: int = 0
    """Of a bsp group: the step after which it was made."""


def bring_back(store: _native.Store, wanted: messages.Restore) -> Source:
    """Import the slots: from the checkpoint that is named, else from the newest one that can be read at all.

    The folder that is named lies in memory where its pages have outlived the server; `fallback` is storage.
    """
    if not wanted.slots:
        return _learn_tables(store, wanted)
    first = Source(wanted.where, wanted.number)
    try:
        return _import(store, first, wanted)
    except (errors.BadInput, OSError) as error:
        troubles = [f"checkpoint {first.number} in {first.where} cannot be used: {error}"]
    log.warning("%s", troubles[0])
    found: list[Source] = []
    for where in filter(None, (wanted.where, wanted.fallback)):
        looked = reader.latest(where, wanted.slots)
        troubles += [each for each in looked.troubles if each not in troubles]
        if looked.manifest is not None:
            found.append(Source(where, looked.manifest.number))
    if not found:
        raise errors.JobFailed("no checkpoint has its slots: " + "; ".join(troubles or ["there is none"]))
    for slot in wanted.slots:
        store.clear_slot(slot)
    return _import(store, max(found, key=lambda source: source.number), wanted)


def _import(store: _native.Store, source: Source, wanted: messages.Restore) -> Source:
    done = restoring.restore(store, source.where, source.number, wanted.slots)
    log.info("restored from checkpoint %d in %s: %s", source.number, source.where, done)
    spared = tuple(f"{file} was read from its mirror: {why}" for file, why in done.spared.items())
    for each in spared:
        log.warning("%s", each)
    return source._replace(spared=spared, step=reader.read(source.where, source.number).step)


def _learn_tables(store: _native.Store, wanted: messages.Restore) -> Source:
    """A server without slots has nothing to bring back: the ledger need not go back for it."""
    try:
        restoring.restore(store, wanted.where, wanted.number, ())
    except (errors.BadInput, OSError) as error:
        log.warning("checkpoint %d in %s: its tables cannot be read: %s", wanted.number, wanted.where, error)
    return Source("", 0)
