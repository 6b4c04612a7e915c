"""Pure. Admits workers to read values, in jobs that bound the staleness of a push.

In: `master.dispatcher`, for workers that send `Enter` before they read and `Leave` once their push is applied. Out:
whether the next worker may read. Admitted workers never wait, so the gate cannot deadlock. Waiting workers are admitted
in order of arrival.
"""

from dataclasses import dataclass, field

from springtide.domain.data.leases import LeaseHolder


@dataclass(slots=True)
class StalenessGate:
    """Workers that have read and not pushed yet, each with the number of pushes applied since its read.

    Each worker inside pushes once before it reads again. For each worker, the pushes applied since its read plus the
    number of other workers inside must stay within the bound. `admit` ensures this, and `leave` cannot break it.
    """

    inside: dict[LeaseHolder, int] = field(default_factory=dict)
    queue: list[LeaseHolder] = field(default_factory=list)

    def admit(self, holder: LeaseHolder, bound: int) -> bool:
        """Admit the holder if it is first in the queue and the bound allows it. Return True if it may read now."""
        if holder not in self.queue:
            self.queue.append(holder)
        if self.queue[0] != holder or len(self.inside) + max(self.inside.values(), default=0) > bound:
            return False
        self.queue.remove(holder)
        self.inside[holder] = 0
        return True

    def leave(self, holder: LeaseHolder) -> bool:
        """Remove a holder whose push is applied or that is gone. Return True if that changes anything."""
        waited = holder in self.queue
        if waited:
            self.queue.remove(holder)
        if self.inside.pop(holder, None) is None:
            return waited
        for other in self.inside:
            self.inside[other] += 1
        return True
