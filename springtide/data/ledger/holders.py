"""Pure. Track workers as lease holders: valid incarnations, ranks that cannot read, seats of the bsp group.

In: data/ledger/job_ledger.py, for every request of a worker. Out: whether the worker is fenced, its seat in the bsp
group, and whether it should leave work to other workers.
"""

from dataclasses import dataclass, field

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True)
class HolderRegistry:
    """The workers of a job, by rank."""

    expected: int
    """Expected number of workers. A lease call gets at most half of a fair share of the remaining work."""
    max_failures: int = 3
    """Number of read failures in a row after which a rank counts as unable to read."""
    living: dict[int, int] = field(default_factory=dict)
    """Highest incarnation of each rank that has called."""
    fenced: dict[int, int] = field(default_factory=dict)
    """Highest incarnation of each rank whose calls are ignored."""
    halvings: dict[int, int] = field(default_factory=dict)
    """Number of times that the leases of a slow rank are halved."""
    trained: dict[int, int] = field(default_factory=dict)
    """Samples trained by each rank over all incarnations, to measure its speed."""
    read_failures: dict[int, int] = field(default_factory=dict)
    """Read failures of each rank since it last trained a sample."""

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
        """Return True for an incarnation that was given up or replaced."""
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
        """Return True if this rank cannot read (a bad mount), and another present or expected rank may be able to.

        Otherwise a rank that cannot read would fail every shard that was never leased.
        """
        if self.read_failures.get(rank, 0) < self.max_failures:
            return False
        return self._more_to_come or any(self.read_failures.get(other, 0) < self.max_failures for other in self.here)

    @property
    def all_failed_to_read(self) -> bool:
        """True if all expected ranks are present and each has failed to read."""
        return not self._more_to_come and all(self.read_failures.get(rank) for rank in self.here)

    @property
    def _more_to_come(self) -> bool:
        return len(self.living) < self.expected


@dataclass(slots=True)
class GroupSeats:
    """The ranks of the bsp group. Passes number the seats from 0, in the order of `ranks`."""

    ranks: tuple[int, ...] = ()
    """Ranks by seat; empty before the first group is formed."""
    halted: bool = False
    """True from the decision to change the group until the new group is formed."""

    def copy(self) -> "GroupSeats":
        return GroupSeats(self.ranks, self.halted)

    def seat(self, rank: int) -> int | None:
        """Return the seat of a rank; the rank itself before a group is formed; None if it is not in the group."""
        if not self.ranks:
            return rank
        return self.ranks.index(rank) if rank in self.ranks else None
