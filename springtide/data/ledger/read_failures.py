"""Pure. Workers that cannot read what they are given, as one with a bad mount: others, who can, should have it then.

In: data/ledger/pass_registry.py, with what it knows of its workers. Out: whether a rank is to leave the rest to others,
and whether there is nobody who could read. A part that failed goes to those first who have not tried it
(data/ledger/async_ledger.py); this is about a rank that reads nothing at all, which would run through everything that
was never handed out.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readers:
    """The workers of a job, by rank."""

    stumbles: Mapping[int, int]
    """How often each could not read since it last trained something."""
    living: Mapping[int, int]
    """Highest incarnation of each that has spoken."""
    fenced: Mapping[int, int]
    """Incarnations up to which each was given up, or is through."""
    expected: int
    most: int
    """So many failures in a row, and a rank is taken for one that cannot read."""

    @property
    def here(self) -> set[int]:
        """Ranks that could take work."""
        return {rank for rank, life in self.living.items() if life > self.fenced.get(rank, -1)}

    def leaves_it_to_others(self, rank: int) -> bool:
        """Whether this one reads nothing, and another may. One that never came yet may; who has left does not."""
        if self.stumbles.get(rank, 0) < self.most:
            return False
        return self._come_more or any(self.stumbles.get(other, 0) < self.most for other in self.here)

    @property
    def all_stumbled(self) -> bool:
        """Whether nobody is left, or to come, who has not failed to read."""
        return not self._come_more and all(self.stumbles.get(rank) for rank in self.here)

    @property
    def _come_more(self) -> bool:
        return len(self.living) < self.expected
