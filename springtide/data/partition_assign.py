"""Pure. Which worker should read which partitions of a stream: about as many each, about as much traffic, few moves.

In: who has what now, who is there, records a second by partition. Out: an owner for every partition, and why. Next:
master/data/partitions.py puts them into the book; whoever holds what is another's now gives it back between two
batches.
"""

import bisect
from collections.abc import Collection, Mapping
from typing import NamedTuple

UNEVEN = 1.25
"""Traffic of the busiest worker, against the mean, from which partitions are exchanged."""
WORTH = 0.05
"""Part of the mean by which an exchange must ease the busiest: less is not worth the moves."""
MOST_EXCHANGES = 16  # at a time


class PartitionAssignment(NamedTuple):
    """By partition, the rank that it is meant for."""

    owners: dict[int, int]
    why: str


def assign(
    partitions: Collection[int],
    owners: Mapping[int, int],
    ranks: Collection[int],
    rates: Mapping[int, float] | None = None,
    slow: Collection[int] = (),
) -> PartitionAssignment:
    """Owners for all partitions, as they are now as far as that is fair. No rank: nobody's.

    Numbers differ by one at the most. Where rates are known, the busiest then exchanges partitions with the idlest as
    long as that helps; one partition with most of the traffic stays where it is, and gets quiet neighbours. Ranks that
    are `slow` keep the quietest that they have, by which is seen when they no longer are: whoever can hardly train can
    hardly read for others either.
    """
    if not ranks:
        return PartitionAssignment({}, "no worker asks for partitions")
    rates = rates or {}
    mine: dict[int, list[int]] = {rank: [] for rank in sorted(ranks)}
    free: list[int] = []
    for partition in sorted(partitions):
        mine.get(owners.get(partition, -1), free).append(partition)
    did = []
    if free:
        did.append(f"{len(free)} that were nobody's are given to them")
    kept, eased = _ease(mine, slow, rates)
    if eased:
        did.append(f"{len(eased)} of slow workers go to others")
    total = sum(map(len, mine.values())) + len(free) + len(eased)
    taken = _take(mine, total, rates)
    if taken:
        did.append(f"{len(taken)} go to those that have fewer")
    _give(mine, [*free, *eased, *taken], total, rates)
    uneven = _uneven(mine, rates)
    if exchanged := _exchange(mine, rates):
        did.append(f"{2 * exchanged} are exchanged, since the busiest has {uneven:.1f} times the mean traffic")
    said = ", ".join(did) or "each has its part"
    whose = {partition: rank for rank, part in (mine | kept).items() for partition in part}
    return PartitionAssignment(whose, f"{len(partitions)} partitions, {len(ranks)} workers: {said}")


def _ease(
    mine: dict[int, list[int]], slow: Collection[int], rates: Mapping[int, float]
) -> tuple[dict[int, list[int]], list[int]]:  # fmt: skip
    """Take slow ranks out of those that share, if others are left: what each keeps, and all that goes to the others."""
    kept: dict[int, list[int]] = {}
    eased: list[int] = []
    if any(rank not in slow for rank in mine):
        for rank in [rank for rank in mine if rank in slow]:
            part = sorted(mine.pop(rank), key=lambda one: (rates.get(one, 0.0), one))
            kept[rank] = part[:1]
            eased += part[1:]
    return kept, eased


def _take(mine: dict[int, list[int]], total: int, rates: Mapping[int, float]) -> list[int]:
    """Partitions of ranks that have too many; busy and quiet ones alike. Who has most may keep one more."""
    least, more = divmod(total, len(mine))
    taken: list[int] = []
    for place, rank in enumerate(sorted(mine, key=lambda rank: (-len(mine[rank]), rank))):
        part = sorted(mine[rank], key=lambda one: (rates.get(one, 0.0), one))
        excess = len(part) - least - (place < more)
        if excess > 0:
            goes = {part[(2 * n + 1) * len(part) // (2 * excess)] for n in range(excess)}
            taken += sorted(goes)
            mine[rank] = [one for one in mine[rank] if one not in goes]
    return taken


def _give(mine: dict[int, list[int]], free: list[int], total: int, rates: Mapping[int, float]) -> None:
    """What is free goes to those that have too few, the busiest first, each to whom it burdens least."""
    least = total // len(mine)
    loads = {rank: sum(rates.get(one, 0.0) for one in part) for rank, part in mine.items()}
    left = len(free)
    for partition in sorted(free, key=lambda one: (-rates.get(one, 0.0), one)):
        short = {rank: max(0, least - len(part)) for rank, part in mine.items()}
        forced = sum(short.values()) >= left  # each that is left has its place already
        room = [rank for rank in mine if (short[rank] if forced else len(mine[rank]) <= least)]
        rank = min(room, key=lambda rank: (loads[rank], len(mine[rank]), rank))
        mine[rank].append(partition)
        loads[rank] += rates.get(partition, 0.0)
        left -= 1


def _uneven(mine: Mapping[int, list[int]], rates: Mapping[int, float]) -> float:
    """Traffic of the busiest worker against the mean; 1 where nothing is known."""
    loads = [sum(rates.get(one, 0.0) for one in part) for part in mine.values()]
    return max(loads) * len(loads) / sum(loads) if sum(loads) > 0 else 1.0


def _exchange(mine: dict[int, list[int]], rates: Mapping[int, float]) -> int:
    """Ease the busiest worker by exchanging a partition of it with a quieter one of the idlest. How often."""
    done = 0
    while done < MOST_EXCHANGES and _uneven(mine, rates) > UNEVEN:
        loads = {rank: sum(rates.get(one, 0.0) for one in part) for rank, part in mine.items()}
        busiest, idlest = max(loads, key=lambda rank: (loads[rank], rank)), min(loads, key=lambda rank: loads[rank])
        mean, gap = sum(loads.values()) / len(loads), loads[busiest] - loads[idlest]
        quiet = sorted((rates.get(one, 0.0), one) for one in mine[idlest])
        pairs = []
        for busy in mine[busiest]:
            place = bisect.bisect_left(quiet, (rates.get(busy, 0.0) - gap / 2, -1))
            pairs += [(rates.get(busy, 0.0) - rate, busy, one) for rate, one in quiet[max(0, place - 1) : place + 1]]
        helps = [pair for pair in pairs if min(pair[0], gap - pair[0]) > WORTH * mean]
        if not helps:
            break
        _, out, back = min(helps, key=lambda pair: (abs(gap / 2 - pair[0]), pair[1:]))
        mine[busiest][mine[busiest].index(out)] = back
        mine[idlest][mine[idlest].index(back)] = out
        done += 1
    return done
