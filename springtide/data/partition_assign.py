"""Pure. Assigns partitions of a stream to workers: equal numbers, few moves.

In: the current owners and the present workers. Out: an owner for every partition, and the reason. Next:
master/data/leases.py puts the owners into the ledger. A worker returns a reassigned partition between two batches.
Workers that get more traffic than others forward batches (data/peer_shuffle.py).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class PartitionAssignment(NamedTuple):
    """Rank of each partition, and the reason."""

    owners: dict[int, int]
    why: str


def assign(
    partitions: Collection[int], owners: Mapping[int, int], ranks: Collection[int], slow: Collection[int] = ()
) -> PartitionAssignment:
    """Assign all partitions, and keep owners where the result is fair. Without ranks, assign nothing.

    Numbers of partitions differ by at most one. A `slow` rank has only one partition. The progress of this partition
    shows when the rank has recovered.
    """
    if not ranks:
        return PartitionAssignment({}, "no worker asks for partitions")
    mine: dict[int, list[int]] = {rank: [] for rank in sorted(ranks)}
    free: list[int] = []
    for partition in sorted(partitions):
        mine.get(owners.get(partition, -1), free).append(partition)
    steps = []
    if free:
        steps.append(f"{len(free)} free partitions get a worker")
    kept, eased = _ease(mine, slow)
    if eased:
        steps.append(f"{len(eased)} move away from slow workers")
    total = sum(map(len, mine.values())) + len(free) + len(eased)
    taken = _take(mine, total)
    if taken:
        steps.append(f"{len(taken)} move to workers with fewer partitions")
    for partition in (*free, *eased, *taken):
        min(mine.values(), key=len).append(partition)
    what = ", ".join(steps) or "each worker already has its share"
    whose = {partition: rank for rank, part in (mine | kept).items() for partition in part}
    return PartitionAssignment(whose, f"{len(partitions)} partitions, {len(ranks)} workers: {what}")


def _ease(mine: dict[int, list[int]], slow: Collection[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Exclude slow ranks, unless all ranks are slow. Return two values: the partition that each slow rank keeps, and
    the partitions that slow ranks give up.
    """
    kept: dict[int, list[int]] = {}
    eased: list[int] = []
    if any(rank not in slow for rank in mine):
        for rank in [rank for rank in mine if rank in slow]:
            part = mine.pop(rank)
            kept[rank] = part[:1]
            eased += part[1:]
    return kept, eased


def _take(mine: dict[int, list[int]], total: int) -> list[int]:
    """Take surplus partitions from ranks that have too many."""
    least, more = divmod(total, len(mine))
    taken: list[int] = []
    for place, rank in enumerate(sorted(mine, key=lambda rank: (-len(mine[rank]), rank))):
        keeps = least + (place < more)
        taken += mine[rank][keeps:]
        del mine[rank][keeps:]
    return taken
