"""Pure. How often a bsp group was broken by a lost worker, and how long it did not train then.

In: `job.group.groups`, when a group is formed and when it goes back to its checkpoint. Out: figures that
`master.servers.bsp_group` tells the group. Next: `planning.guards.cache_benefit` weighs with them what a cache would
cost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True, kw_only=True)
class GroupBreaks:
    """Of one job, from its beginning."""

    formed_at: float | None = None
    """When the first group was formed."""
    start_s: float = 0.0
    """Seconds that this took: all processes, all tables."""
    losses: int = 0
    """Workers that were lost out of a group."""
    waits: int = 0
    """Times that the others waited for the next life of a lost worker, and went on where they were."""
    waited_s: float = 0.0
    """Seconds of all these."""
    returns: int = 0
    """Times that all began anew from the checkpoint."""
    returned_s: float = 0.0
    """Seconds of all these."""
    back_at: float | None = None
    """When the return that is under way began."""

    def went_back(self, since: Iterable[float], *, at: float) -> None:
        """All begin anew; `since`: when the next life of each lost worker was wanted."""
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
        """A group of these members after the one `before` (incarnations by rank); `since`: when each life began."""
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
        """Seconds in which workers were lost, or were not."""
        return 0.0 if self.formed_at is None else at - self.formed_at

    @property
    def return_s(self) -> float:
        """Seconds that a return takes longer than the wait for one worker's next life, as far as either was seen.

        Before the first return it is thought to take what the job's own start took; a wait that was never seen is
        thought to take nothing: rather too much than too little.
        """
        whole = self.returned_s / self.returns if self.returns else self.start_s
        return max(0.0, whole - (self.waited_s / self.waits if self.waits else 0.0))
