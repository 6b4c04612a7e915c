"""Pure. Workers of a stream that train far less than their peers in the same time, and how many others make up for it.

In: paces while there was something to do. Out: ranks that are slow, and how many workers to have beside
those that traffic asks for. What they cannot train in time goes to others at once, by shuffling; then their partitions
do, but one (data/assign.py); a backup is there so that these others have room for it.
"""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from springtide.domain.straggling import StragglerRules
from springtide.job import stragglers

MOST_SHARE = 0.5  # of the workers that may be backed up: if more are slow, it is not them


class Backups(NamedTuple):
    """What is to be done for slow workers."""

    workers: int
    why: str
    """Who is slow, and by how much; empty: nobody."""
    slow: tuple[int, ...] = ()


def wanted(
    paces: Mapping[int, float], before: frozenset[int], rules: StragglerRules, sure: Collection[int] | None = None
) -> Backups:
    """One backup for every whole worker that the slow ones lack together; `before`: who counted as slow until now.

    `sure`: whose pace is what they can do; others may be faster than that, and are not called slow. None: all.
    """
    if len(paces) < 2:
        return Backups(0, "")
    slow, said, lacking = [], [], 0.0
    for rank, pace in sorted(paces.items()):
        peers = [other for peer, other in paces.items() if peer != rank]
        standard = stragglers.standard_of(peers, rules)
        verdict = stragglers.compare(pace, standard, rules)
        known = sure is None or rank in sure
        if (verdict.slow and known) or (rank in before and not (verdict.recovered and known)):
            slow.append(rank)
            said.append(f"worker-{rank} trains {verdict.why}")
            lacking += max(0.0, 1 - pace / standard.middle) if standard.middle else 0.0
    if not slow or len(slow) > MOST_SHARE * len(paces):
        return Backups(0, "")
    count = max(1, math.floor(lacking + 0.5))
    return Backups(count, "; ".join(said), tuple(slow))
