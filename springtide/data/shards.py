"""Pure. Cuts a data set into shards: small, equal parts of a shuffled order that every process computes independently.

In: a `DatasetCard`. Out: the samples of shard k of an epoch, in order. Next: `data.ledger.async_ledger` leases shards.
The order of an epoch is a keyed permutation of 0..n-1 (a Feistel network with cycle walking), so there is no table of
all samples. The order does not depend on the number of workers or servers.
"""

import zlib

import msgspec
import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.domain.data.samples import DatasetCard

Indices = npt.NDArray[np.int64]

# number of Feistel rounds; four rounds suffice in theory for a random-looking order, and small domains gain from two
# more
ROUNDS = 6

# most batches per shard. A shard is some seconds of work, so that the cost of leases is negligible. A quarter of a
# shard is 64 batches.
LARGEST = 256
FEWEST = 64  # fewest shards per pass. In a job with four workers, each shard is then a sixteenth of a worker's share.


class RowGroups(msgspec.Struct, frozen=True, eq=False):
    """Runs of samples of a data set that are cheap to read together, such as the row groups of Parquet files.

    A shuffled epoch goes through them in a random order, `together` groups at a time, and shuffles the samples of these
    groups. A reader that holds `together` groups therefore reads each group once.
    """

    ends: Indices
    """Index after the last sample of each group, in ascending order."""
    together: int

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.ends.tobytes(), self.together)

    def shuffled(self, positions: Indices, *, key: int) -> Indices:
        """Return the samples at these positions of an epoch."""
        sizes = np.diff(self.ends, prepend=0)
        order = permuted(np.arange(len(sizes)), len(sizes), key=key)
        ends = np.cumsum(sizes[order])
        lasts = np.append(ends[self.together - 1 : -1 : self.together], ends[-1])
        windows = np.searchsorted(lasts, positions, side="right")
        place = np.empty_like(positions)
        for window in np.unique(windows):
            here, begin = windows == window, int(lasts[window - 1]) if window else 0
            own = order_key(key, int(window))
            place[here] = begin + permuted(positions[here] - begin, int(lasts[window]) - begin, key=own)
        group = np.searchsorted(ends, place, side="right")
        found: Indices = self.ends[order[group]] - ends[group] + place
        return found


def row_groups(dataset: object) -> RowGroups | None:
    """Return the row groups of a data set, if it has an attribute `row_groups` of this type."""
    found = getattr(dataset, "row_groups", None)
    return found if isinstance(found, RowGroups) else None


def size(card: DatasetCard, index: int) -> int:
    """Return the number of samples of shard `index` of an epoch. All shards are equal, except the last."""
    if not 0 <= index < card.shards:
        raise errors.BadInput(f"shard {index}: an epoch of {card.samples_used} samples has {card.shards} shards")
    return min(card.shard_size, card.samples_used - index * card.shard_size)


def batches_a_shard(batches: int) -> int:
    """Return the batches per shard for a pass of this many batches, usually 256. A slow worker leases a half or a
    quarter of a shard at a time.

    The number is smaller if the pass would otherwise have fewer than 64 shards, so that workers share small data sets
    evenly.
    """
    return max(1, min(LARGEST, 1 << (batches // FEWEST).bit_length() >> 1))


def indices(
    card: DatasetCard,
    *,
    epoch: int,
    index: int,
    first: int = 0,
    end: int | None = None,
    groups: RowGroups | None = None,
) -> Indices:
    """Return samples `first` to `end` of a shard, in training order. Each run of `batch_size` consecutive samples is a
    batch."""
    begin = index * card.shard_size
    last = size(card, index) if end is None else min(end, size(card, index))
    positions = np.arange(begin + first, begin + last, dtype=np.int64)
    return (
        shuffled(positions, card.samples, key=order_key(card.seed, epoch), groups=groups) if card.shuffle else positions
    )


def shuffled(positions: Indices, count: int, *, key: int, groups: RowGroups | None) -> Indices:
    """Return the samples at these positions of a shuffled epoch of `count` samples."""
    return permuted(positions, count, key=key) if groups is None else groups.shuffled(positions, key=key)


def rank_part(count: int, *, rank: int, workers: int, unit: int = 1) -> slice:
    """Return a rank's part of a bsp batch, which consists of whole units. Parts differ by at most one unit."""
    if not 0 <= rank < workers:
        raise errors.BadInput(f"rank {rank} of a group of {workers}: expected 0 to {workers - 1}")
    units = -(-count // unit)
    return slice(min(count, units * rank // workers * unit), min(count, units * (rank + 1) // workers * unit))


def order_key(seed: int, epoch: int) -> int:
    """Return a 64-bit key from seed and epoch; neighbouring epochs get unrelated keys."""
    return int(_mix(np.array([(seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) % 2**64], dtype=np.uint64))[0])


def permuted(positions: Indices, count: int, *, key: int) -> Indices:
    """Map these positions through a keyed permutation of 0..count-1."""
    # at least 16 positions, because a smaller network can produce too few different orders
    bits = max(4, int(count - 1).bit_length())
    low_bits = bits // 2
    keys = _mix(np.arange(1, ROUNDS + 1, dtype=np.uint64) + np.uint64(key))
    out = _network(positions.astype(np.uint64), keys, low_bits, bits - low_bits)
    while (outside := np.flatnonzero(out >= count)).size:
        out[outside] = _network(out[outside], keys, low_bits, bits - low_bits)
    return out.astype(np.int64)


def _network(
    values: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64], low_bits: int, high_bits: int
) -> npt.NDArray[np.uint64]:
    """Bijection of 0..2^(low+high)-1 that masks each half in turn by a hash of the other half."""
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << high_bits) - 1)
    low, high = values & low_mask, values >> np.uint64(low_bits)
    for turn in range(ROUNDS):
        if turn % 2:
            low ^= _mix(high + keys[turn]) & low_mask
        else:
            high ^= _mix(low + keys[turn]) & high_mask
    return (high << np.uint64(low_bits)) | low


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each value so that every input bit affects all 64 output bits (a multiply-and-shift finalizer; overflow is
    intended).
    """
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return values ^ (values >> np.uint64(32))
