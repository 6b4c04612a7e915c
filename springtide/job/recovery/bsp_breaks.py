"""Pure. Counts how often lost workers interrupted a bsp group, and how long training stopped.

In: `job.group.groups`, when a group forms and when it rolls back. Out: figures that `master.servers.bsp_group` sends to
the group. Next: `planning.guards.cache_benefit` uses them to weigh the cost of a cache.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True, kw_only=True)
class GroupBreaks:
    """Interruptions of one job's bsp groups, since the job began."""

    formed_at: float | None = None
    """When the first group formed."""
    start_s: float = 0.0
    """Seconds until the first group formed, with the start of all processes and tables."""
    losses: int = 0
    """Number of workers lost from a group."""
    waits: int = 0
    """Number of times that the group waited for a relaunched worker and then continued its step."""
    waited_s: float = 0.0
    """Total seconds of these waits."""
    returns: int = 0
    """Number of rollbacks to the checkpoint."""
    returned_s: float = 0.0
    """Total seconds of these rollbacks."""
    back_at: float | None = None
    """When the rollback under way began; None without a rollback."""

    def went_back(self, since: Iterable[float], *, at: float) -> None:
        """Record a rollback. `since` is when the relaunch of each lost worker was requested."""
        lost = list(since)
        self.losses += len(lost)
        self.back_at = min(lost, default=at)

    def formed(
        self,
        before: Mapping[int, int],
        members: Iterable[LeaseHolder],
        since: Mapping[int, float],
        *,
        start: float,
        at: float,
    ) -> None:
        """Record a new group after the group `before` (incarnations by rank). `since` is when each incarnation
        began.
        """
        again = [since[one.rank] for one in members if before.get(one.rank, one.incarnation) != one.incarnation]
        if again:
            self.losses, self.waits = self.losses + len(again), self.waits + 1
            self.waited_s += at - min(again)
        if self.back_at is not None:
            self.returns, self.returned_s = self.returns + 1, self.returned_s + at - self.back_at
            self.back_at = None
        if self.formed_at is None:
            self.formed_at, self.start_s = at, at - start

    def watched_s(self, at: float) -> float:
        """Return the seconds over which losses were counted."""
        return 0.0 if self.formed_at is None else at - self.formed_at

    @property
    def return_s(self) -> float:
        """Return how many seconds longer a rollback takes than waiting for one relaunched worker.

        Before the first rollback, the job's own start time is the estimate. Before the first wait, a wait is estimated
        as 0. Both rather overestimate than underestimate the result.
        """
        whole = self.returned_s / self.returns if self.returns else self.start_s
        return max(0.0, whole - (self.waited_s / self.waits if self.waits else 0.0))
