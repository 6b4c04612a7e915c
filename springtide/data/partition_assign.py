"""Pure. Assign partitions of a stream to workers: equal numbers, similar traffic, few moves.

In: current owners, present workers, records per second by partition. Out: an owner for every partition, and the reason.
Next: master/data/leases.py puts the owners into the ledger. A worker returns a reassigned partition between two
batches.
"""

import bisect
from collections.abc import Collection, Mapping
from typing import NamedTuple

UNEVEN = 1.25
"""Exchange partitions if the busiest worker has this many times the mean traffic."""
WORTH = 0.05
"""Least relief of the busiest worker by an exchange, as a share of the mean; a smaller relief does not justify the
moves.
"""
MOST_EXCHANGES = 16  # exchanges per call


class PartitionAssignment(NamedTuple):
    """The rank of each partition."""

    owners: dict[int, int]
    why: str


def assign(
    partitions: Collection[int],
    owners: Mapping[int, int],
    ranks: Collection[int],
    rates: Mapping[int, float] | None = None,
    slow: Collection[int] = (),
) -> PartitionAssignment:
    """Assign all partitions, and keep owners where that is fair. Without ranks, assign nothing.

    Numbers of partitions differ by at most one. If rates are known, the busiest worker exchanges partitions with the
    idlest while that helps. A partition that has most of the traffic stays with its owner, which gets quiet partitions
    in exchange for its others. A `slow` rank keeps only its quietest partition, whose progress shows when the rank has
    recovered.
    """
    if not ranks:
        return PartitionAssignment({}, "no worker asks for partitions")
    rates = rates or {}
    mine: dict[int, list[int]] = {rank: [] for rank in sorted(ranks)}
    free: list[int] = []
    for partition in sorted(partitions):
        mine.get(owners.get(partition, -1), free).append(partition)
    steps = []
    if free:
        steps.append(f"{len(free)} that were nobody's are given to them")
    kept, eased = _ease(mine, slow, rates)
    if eased:
        steps.append(f"{len(eased)} of slow workers go to others")
    total = sum(map(len, mine.values())) + len(free) + len(eased)
    taken = _take(mine, total, rates)
    if taken:
        steps.append(f"{len(taken)} go to those that have fewer")
    _give(mine, [*free, *eased, *taken], total, rates)
    uneven = _uneven(mine, rates)
    if exchanged := _exchange(mine, rates):
        steps.append(f"{2 * exchanged} are exchanged, since the busiest has {uneven:.1f} times the mean traffic")
    what = ", ".join(steps) or "each has its part"
    whose = {partition: rank for rank, part in (mine | kept).items() for partition in part}
    return PartitionAssignment(whose, f"{len(partitions)} partitions, {len(ranks)} workers: {what}")


def _ease(
    mine: dict[int, list[int]], slow: Collection[int], rates: Mapping[int, float]
) -> tuple[dict[int, list[int]], list[int]]:
    """Exclude slow ranks, if others are left. Return the partitions that each slow rank keeps, and the partitions that
    it gives up."""
    kept: dict[int, list[int]] = {}
    eased: list[int] = []
    if any(rank not in slow for rank in mine):
        for rank in [rank for rank in mine if rank in slow]:
            part = sorted(mine.pop(rank), key=lambda partition: (rates.get(partition, 0.0), partition))
            kept[rank] = part[:1]
            eased += part[1:]
    return kept, eased


def _take(mine: dict[int, list[int]], total: int, rates: Mapping[int, float]) -> list[int]:
    """Take partitions from ranks that have too many: some busy and some quiet partitions."""
    least, more = divmod(total, len(mine))
    taken: list[int] = []
    for place, rank in enumerate(sorted(mine, key=lambda rank: (-len(mine[rank]), rank))):
        part = sorted(mine[rank], key=lambda partition: (rates.get(partition, 0.0), partition))
        excess = len(part) - least - (place < more)
        if excess > 0:
            goes = {part[(2 * n + 1) * len(part) // (2 * excess)] for n in range(excess)}
            taken += sorted(goes)
            mine[rank] = [partition for partition in mine[rank] if partition not in goes]
    return taken


def _give(mine: dict[int, list[int]], free: list[int], total: int, rates: Mapping[int, float]) -> None:
    """Give free partitions to ranks that have too few: the busiest first, each to the rank with the least load."""
    least = total // len(mine)
    loads = {rank: sum(rates.get(partition, 0.0) for partition in part) for rank, part in mine.items()}
    left = len(free)
    for partition in sorted(free, key=lambda partition: (-rates.get(partition, 0.0), partition)):
        short = {rank: max(0, least - len(part)) for rank, part in mine.items()}
        forced = sum(short.values()) >= left  # from here on, all remaining partitions go to ranks that have too few
        room = [rank for rank in mine if (short[rank] if forced else len(mine[rank]) <= least)]
        rank = min(room, key=lambda rank: (loads[rank], len(mine[rank]), rank))
        mine[rank].append(partition)
        loads[rank] += rates.get(partition, 0.0)
        left -= 1


def _uneven(mine: Mapping[int, list[int]], rates: Mapping[int, float]) -> float:
    loads = [sum(rates.get(partition, 0.0) for partition in part) for part in mine.values()]
    return max(loads) * len(loads) / sum(loads) if sum(loads) > 0 else 1.0


def _exchange(mine: dict[int, list[int]], rates: Mapping[int, float]) -> int:
    """Exchange partitions of the busiest worker with quieter partitions of the idlest worker. Return the number of
    exchanges."""
    done = 0
    while done < MOST_EXCHANGES and _uneven(mine, rates) > UNEVEN:
        loads = {rank: sum(rates.get(partition, 0.0) for partition in part) for rank, part in mine.items()}
        busiest, idlest = max(loads, key=lambda rank: (loads[rank], rank)), min(loads, key=lambda rank: loads[rank])
        mean, gap = sum(loads.values()) / len(loads), loads[busiest] - loads[idlest]
        quiet = sorted((rates.get(partition, 0.0), partition) for partition in mine[idlest])
        pairs = []
        for busy in mine[busiest]:
            place = bisect.bisect_left(quiet, (rates.get(busy, 0.0) - gap / 2, -1))
            pairs += [
                (rates.get(busy, 0.0) - rate, busy, partition)
                for rate, partition in quiet[max(0, place - 1) : place + 1]
            ]
        helps = [pair for pair in pairs if min(pair[0], gap - pair[0]) > WORTH * mean]
        if not helps:
            break
        _, out, back = min(helps, key=lambda pair: (abs(gap / 2 - pair[0]), pair[1:]))
        mine[busiest][mine[busiest].index(out)] = back
        mine[idlest][mine[idlest].index(back)] = out
        done += 1
    return done
