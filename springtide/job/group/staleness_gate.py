"""Pure. Who may read values now, where a job bounds how stale a push may be.

In: `master.dispatcher`, for workers that say `Enter` before they read and `Leave` once their push is applied. Out:
whether the next one may go in. Nobody who is inside ever waits, so it comes to no standstill; who waits goes in by
turn.
"""

from dataclasses import dataclass, field

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True)
class StalenessGate:
    """Workers that have read and not pushed yet, with the pushes that were applied since they read.

    For everyone inside, what was applied since plus all others inside, who push once each before they read again, stays
    within the bound: `admit` keeps that so, and `leave` cannot change it.
    """

    inside: dict[LeaseHolder, int] = field(default_factory=dict)
    queue: list[LeaseHolder] = field(default_factory=list)

    def admit(self, holder: LeaseHolder, bound: int) -> bool:
        """Whether the holder, whose turn it must be, may read now: then it is inside until it leaves."""
        if holder not in self.queue:
            self.queue.append(holder)
        if self.queue[0] != holder or len(self.inside) + max(self.inside.values(), default=0) > bound:
            return False
        self.queue.remove(holder)
        self.inside[holder] = 0
        return True

    def leave(self, holder: LeaseHolder) -> bool:
        """The holder's push is applied, or it is gone, its push perhaps with it. Whether that changes anything."""
        waited = holder in self.queue
        if waited:
            self.queue.remove(holder)
        if self.inside.pop(holder, None) is None:
            return waited
        for other in self.inside:
            self.inside[other] += 1
        return True
