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

from springtide import _native, errors
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import PartitionRange, StreamCard

TABLE = 0
HYPER = [(TABLE, _native.Hyper(1.0, 0.0, 0))]
RESERVED_BYTES = 1 << 21  # the least; a large job gets as much as it needs
MOST_BYTES = 1 << 26
JUNK_DIMS = (1024, 128, 16)
MODEL, MODEL_FLOATS = 9, 3  # table of a bsp group's model
Keys = npt.NDArray[np.int64]


LEAST_SLOTS = 64  # the least number of slots that a store may have; small jobs use only the first of them
_spare: list[_native.Store] = []
_full: set[int] = set()


def new_store(slots: int) -> _native.Store:
    """Return an empty store. Stores of earlier histories are used again, because the first writes to fresh memory are
    slow.
    """
    if slots < LEAST_SLOTS and _spare:
        return _spare.pop()
    bytes_ = MOST_BYTES if slots >= LEAST_SLOTS else RESERVED_BYTES
    store = _native.Store(slots=max(slots, LEAST_SLOTS), seed=0, reserve_bytes=bytes_)
    store.declare(_native.TableSpec(id=TABLE, name="counts", dim=1, optimizer="sgd"))
    store.declare(_native.TableSpec(id=MODEL, name="group:state", dim=MODEL_FLOATS, optimizer="sgd"))
    return store


def reuse(store: _native.Store) -> None:
    """Empty a store that nobody uses any more, for the next caller of `new_store`."""
    if id(store) in _full:
        _full.discard(id(store))
    elif store.slots == LEAST_SLOTS:
        for slot in range(store.slots):
            store.clear_slot(slot)
        _spare.append(store)


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
    row: int = -1
    """Row of keys that counts these batches; -1: the row of the shard."""


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


def count(wanted: Keys, slots: int, stores: Mapping[int, _native.Store]) -> Counts:
    """Count the batches in every slot at its owner. All batches of a slot without an owner are lost.

    `wanted` has the number of batches of each row of keys.
    """
    shards = len(wanted)
    keys = counting_keys(slots, shards)
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


LIVES = 3  # lives of a log for which there are keys


@dataclass(slots=True)
class VirtualLog:
    """A sealed stream. A log that is made anew has other records at the same offsets, which other keys count."""

    sizes: tuple[int, ...]
    """Batches of each partition."""
    batch: int
    life: int = 0
    """How often the log was made anew."""

    def card(self) -> DatasetCard:
        stream = StreamCard(url="log:///clicks", id=f"life {self.life}")
        return DatasetCard(samples=0, batch_size=self.batch, shuffle=False, shard_batches=1, stream=stream)

    def bounds(self) -> tuple[PartitionRange, ...]:
        return tuple(
            PartitionRange(partition, 0, size * self.batch, final=True) for partition, size in enumerate(self.sizes)
        )

    def row(self, partition: int) -> int:
        return self.life * len(self.sizes) + partition

    def wanted(self) -> Keys:
        rows = np.zeros((LIVES, len(self.sizes)), dtype=np.int64)
        rows[self.life] = self.sizes
        return rows.reshape(-1)


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
        keys[shard if batches.row < 0 else batches.row, part.slots],
        np.full(count, -batches.number, dtype=np.float32),
        HYPER,
        [(0, shard, first, end - first)],
        part.mask,
        unique=True,
    )
    return frozenset(stats.torn)


def apply_step(store: _native.Store, keys: Keys, slots: tuple[int, ...], batches: BatchRun) -> None:
    """Apply batches to some slots without an identity, as a step of a bsp group."""
    store.push(
        np.zeros(len(slots), dtype=np.uint16),
        keys[batches.shard, slots],
        np.full(len(slots), -batches.number, dtype=np.float32),
        HYPER,
        unique=True,
    )


JUNK = 10**9  # the first key of rows that nobody counts


@lru_cache(maxsize=128)
def junk_keys(table: int, slot: int) -> Keys:
    keys, slots = _junk(table)
    return keys[slots == slot]


@lru_cache
def _junk(table: int) -> tuple[Keys, npt.NDArray[np.uint16]]:
    keys = np.arange(JUNK, JUNK + 6000 * LEAST_SLOTS, dtype=np.int64)
    return keys, np.asarray(_native.Store(slots=LEAST_SLOTS, seed=0).slot_of(table, keys))


def fill(store: _native.Store, slots: int) -> None:
    """Take all memory of a store, and the rows that its `slots` have at hand, for rows that nobody counts.

    The store cannot be used for another history.
    """
    _full.add(id(store))
    for table, dim in enumerate(JUNK_DIMS, TABLE + 1):
        store.declare(_native.TableSpec(id=table, name=f"junk{dim}", dim=dim, optimizer="sgd"))
        _take_rows(store, table, dim, LEAST_SLOTS - 1, 64)
    for slot in reversed(range(LEAST_SLOTS)):  # the slots of the job last: they have rows at hand
        _take_rows(store, TABLE, 1, slot, 512 if slot < slots else 1, most=5000 if slot < slots else 1)


def _take_rows(store: _native.Store, table: int, dim: int, slot: int, more: int, most: int = 5000) -> None:
    junk, first = junk_keys(table, slot), 0
    while more and first < most:
        keys = junk[first : first + more]
        try:
            store.assign(np.full(more, table, dtype=np.uint16), keys, np.ones(more * dim, dtype=np.float32))
            first += more
        except errors.BadInput:
            more //= 8
