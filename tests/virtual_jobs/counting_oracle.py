"""Checks that every batch was applied exactly once to every slot of a virtual job.

In: pushes of virtual workers, as (shard, batches). Out: rows to push, and at the end the lost and repeated batches. The
rows are in the real store, with one key per slot and shard. Rows start at zero and use SGD with rate 1 and a gradient
of -1 per batch, so each row counts batches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide import _native
from springtide.domain.data.samples import DatasetCard

TABLE = 0
HYPER = [(TABLE, _native.Hyper(1.0, 0.0, 0))]
RESERVED_BYTES = 1 << 26
Keys = npt.NDArray[np.int64]


def new_store(slots: int) -> _native.Store:
    store = _native.Store(slots=slots, seed=0, reserve_bytes=RESERVED_BYTES)
    store.declare(_native.TableSpec(id=TABLE, name="counts", dim=1, optimizer="sgd"))
    return store


@lru_cache(maxsize=16)
def counting_keys(slots: int, shards: int) -> Keys:
    """Return one key for each shard and slot that lies in that slot."""
    store, found, first = new_store(slots), [np.empty(0, dtype=np.int64) for _ in range(slots)], 0
    while min(len(keys) for keys in found) < shards:
        some = np.arange(first, first + 2 * slots * shards, dtype=np.int64)
        slot_of = np.asarray(store.slot_of(TABLE, some))
        found = [np.concatenate([keys, some[slot_of == slot]]) for slot, keys in enumerate(found)]
        first += len(some)
    return np.stack([keys[:shards] for keys in found], axis=1)


class BatchRun(NamedTuple):
    """The samples `first` to `end` of a shard, and their number of batches."""

    shard: int
    first: int
    end: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Totals of the counting tables, in (batch, slot) pairs."""

    wanted: int
    lost: int = 0
    """Pairs that were never applied."""
    repeated: int = 0
    """Pairs that were applied more than once."""
    first: str = ""
    """Description of the first wrong pair."""

    @property
    def right(self) -> bool:
        return not self.lost and not self.repeated


def count(card: DatasetCard, slots: int, stores: Mapping[int, _native.Store]) -> Counts:
    """Count the batches in every slot at its owner. All batches of a slot without an owner are lost."""
    shards = card.epochs * card.shards
    keys, wanted = counting_keys(slots, shards), batches_of(card)
    lost = repeated = 0
    said = ""
    for slot in range(slots):
        seen = np.zeros((shards, 1), dtype=np.float32)
        if slot in stores:
            tables = np.full(shards, TABLE, dtype=np.uint16)
            stores[slot].pull(tables, np.ascontiguousarray(keys[:, slot]), seen[:, 0])
        off = np.rint(seen[:, 0]).astype(np.int64) - wanted
        lost, repeated = lost - int(off[off < 0].sum()), repeated + int(off[off > 0].sum())
        if not said and off.any():
            shard = int(np.flatnonzero(off)[0])
            said = f"slot {slot} has {wanted[shard] + off[shard]} batches of shard {shard}, wanted {wanted[shard]}"
    return Counts(wanted=slots * int(wanted.sum()), lost=lost, repeated=repeated, first=said)


def batches_of(card: DatasetCard) -> Keys:
    sizes = np.full(card.shards, card.shard_size, dtype=np.int64)
    sizes[-1] = card.samples_used - (card.shards - 1) * card.shard_size
    return np.tile(-(-sizes // card.batch_size), card.epochs)


class SlotPart(NamedTuple):
    """The slots of a server that a push covers."""

    slots: tuple[int, ...]
    mask: npt.NDArray[np.uint8]

    @staticmethod
    def of(slots: Iterable[int], all_slots: int) -> "SlotPart":
        chosen = tuple(slots)
        mask = np.zeros(all_slots, dtype=np.uint8)
        mask[list(chosen)] = 1
        return SlotPart(chosen, mask)


def apply(store: _native.Store, keys: Keys, part: SlotPart, batches: BatchRun) -> frozenset[int]:
    """Apply batches of one shard to some slots of a server. Return the slots that already hold a part and refuse the
    push.
    """
    count, shard, first, end = len(part.slots), batches.shard, batches.first, batches.end
    stats = store.push_once(
        np.zeros(count, dtype=np.uint16),
        keys[shard, part.slots],
        np.full(count, -batches.number, dtype=np.float32),
        HYPER,
        [(0, shard, first, end - first)],
        part.mask,
        unique=True,
    )
    return frozenset(stats.torn)
