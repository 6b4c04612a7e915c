"""Pure. Cut a data set into shards: small, equal runs of a shuffled order that any process can compute alone.

In: a `DatasetCard`. Out: the samples of shard k of an epoch, in order. Next: `data.ledger.async_ledger` hands them out.

The order of an epoch is a keyed permutation of 0..n-1 (a Feistel network with cycle walking), so shard k costs only its
own length. No table of all samples is built, and neither the number of workers nor of servers changes the order.
"""

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.domain.data.samples import DatasetCard

Indices = npt.NDArray[np.int64]

ROUNDS = 6  # four suffice for a random-looking order in theory; small domains gain from two more

LARGEST = 256  # batches of a shard: some seconds of work, so that leases cost nothing, and a quarter is 64
FEWEST = 64  # shards of a pass: with four workers each one is a sixteenth of a worker's part


def size(card: DatasetCard, index: int) -> int:
    """Samples of shard number `index` of an epoch: all are equal but the last."""
    if not 0 <= index < card.shards:
        raise errors.BadInput(f"shard {index}: an epoch of {card.samples_used} samples has {card.shards} shards")
    return min(card.shard_size, card.samples_used - index * card.shard_size)


def batches_a_shard(batches: int) -> int:
    """Batches of a shard for a pass of this many batches: 256, of which a slow worker gets a half or a quarter.

    Fewer where that leaves under 64 shards, so that small data sets are shared evenly too.
    """
    return max(1, min(LARGEST, 1 << (batches // FEWEST).bit_length() >> 1))


def indices(card: DatasetCard, *, epoch: int, index: int, first: int = 0, end: int | None = None) -> Indices:
    """Samples `first` to `end` of a shard in training order; batches are consecutive runs of `batch_size`."""
    begin = index * card.shard_size
    last = size(card, index) if end is None else min(end, size(card, index))
    positions = np.arange(begin + first, begin + last, dtype=np.int64)
    return permuted(positions, card.samples, key=order_key(card.seed, epoch)) if card.shuffle else positions


def rank_part(count: int, *, rank: int, workers: int, unit: int = 1) -> slice:
    """The part of a batch that one rank of a bsp group takes, cut between units; parts differ by one unit at most."""
    if not 0 <= rank < workers:
        raise errors.BadInput(f"rank {rank} of a group of {workers}: wanted 0 to {workers - 1}")
    units = -(-count // unit)
    return slice(min(count, units * rank // workers * unit), min(count, units * (rank + 1) // workers * unit))


def order_key(seed: int, epoch: int) -> int:
    """One 64-bit key from seed and epoch; neighbouring epochs get unrelated keys."""
    return int(_mix(np.array([(seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) % 2**64], dtype=np.uint64))[0])


def permuted(positions: Indices, count: int, *, key: int) -> Indices:
    """Images of these positions under a keyed permutation of 0..count-1."""
    bits = max(4, int(count - 1).bit_length())  # a network of under 16 positions has too few orders
    low_bits = bits // 2
    keys = _mix(np.arange(1, ROUNDS + 1, dtype=np.uint64) + np.uint64(key))
    out = _network(positions.astype(np.uint64), keys, low_bits, bits - low_bits)
    while (outside := np.flatnonzero(out >= count)).size:
        out[outside] = _network(out[outside], keys, low_bits, bits - low_bits)
    return out.astype(np.int64)


def _network(
    values: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64], low_bits: int, high_bits: int
) -> npt.NDArray[np.uint64]:
    """A bijection of 0..2^(low+high)-1: each half in turn is masked by a hash of the other."""
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << high_bits) - 1)
    low, high = values & low_mask, values >> np.uint64(low_bits)
    for turn in range(ROUNDS):
        if turn % 2:
            low ^= _mix(high + keys[turn]) & low_mask
        else:
            high ^= _mix(low + keys[turn]) & high_mask
    return (high << np.uint64(low_bits)) | low


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every input bit over all 64 (a multiply-and-shift finalizer; wraps on purpose)."""
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return values ^ (values >> np.uint64(32))
