"""Pure. Workers as lease holders: which incarnation of a rank counts, who cannot read, who is in the bsp group.

In: data/ledger/job_ledger.py, with every request of a worker. Out: whether the worker may speak, its seat in the bsp
group, and whether it should leave unread work to others.
"""

from dataclasses import dataclass, field

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True)
class HolderRegistry:
    """The workers of a job, by rank."""

    expected: int
    """How many workers share the work that is left: no call gets more than half of a fair share."""
    max_failures: int = 3
    """A rank with this many read failures in a row counts as one that cannot read."""
    living: dict[int, int] = field(default_factory=dict)
    """Highest incarnation of each rank that has called."""
    fenced: dict[int, int] = field(default_factory=dict)
    """Highest incarnation of each rank whose calls are ignored."""
    halvings: dict[int, int] = field(default_factory=dict)
    """How often the leases of a slow rank are halved."""
    trained: dict[int, int] = field(default_factory=dict)
    """Samples trained by each rank over all incarnations; its pace is measured by this."""
    read_failures: dict[int, int] = field(default_factory=dict)
    """Read failures of each rank since it last trained something."""

    def copy(self) -> "HolderRegistry":
        return HolderRegistry(
            self.expected,
            self.max_failures,
            dict(self.living),
            dict(self.fenced),
            dict(self.halvings),
            dict(self.trained),
            dict(self.read_failures),
        )

    def is_fenced(self, holder: LeaseHolder) -> bool:
        """True for an incarnation that was given up or has a successor."""
        rank, incarnation = holder
        return incarnation <= self.fenced.get(rank, -1) or incarnation < self.living.get(rank, -1)

    def is_here(self, rank: int) -> bool:
        return self.living.get(rank, -1) > self.fenced.get(rank, -2)

    @property
    def here(self) -> set[int]:
        """Ranks that can take work now."""
        return {rank for rank, incarnation in self.living.items() if incarnation > self.fenced.get(rank, -1)}

    def add_trained(self, rank: int, samples: int) -> None:
        self.trained[rank] = self.trained.get(rank, 0) + samples
        self.read_failures.pop(rank, None)

    def add_read_failure(self, rank: int) -> None:
        self.read_failures[rank] = self.read_failures.get(rank, 0) + 1

    def should_leave_work(self, rank: int) -> bool:
        """True if this rank cannot read (a bad mount) and another rank, here or still to come, may be able to.

        Without this a rank that reads nothing would run through all shards that were never handed out.
        """
        if self.read_failures.get(rank, 0) < self.max_failures:
            return False
        return self._more_to_come or any(self.read_failures.get(other, 0) < self.max_failures for other in self.here)

    @property
    def all_failed_to_read(self) -> bool:
        """True if no rank, here or still to come, is left that has not failed to read."""
        return not self._more_to_come and all(self.read_failures.get(rank) for rank in self.here)

    @property
    def _more_to_come(self) -> bool:
        return len(self.living) < self.expected


@dataclass(slots=True)
class GroupSeats:
    """The ranks of the bsp group. Its passes count seats from 0, in the order of `ranks`."""

    ranks: tuple[int, ...] = ()
    """Empty before the first group is formed."""
    halted: bool = False
    """True from the decision to change the group until the new group is formed."""

    def copy(self) -> "GroupSeats":
        return GroupSeats(self.ranks, self.halted)

    def seat(self, rank: int) -> int | None:
        """Seat of a rank; before a group is formed, the rank itself. None: not in the group."""
        if not self.ranks:
            return rank
        return self.ranks.index(rank) if rank in self.ranks else None
