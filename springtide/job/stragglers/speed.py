"""Pure. Measures the pace of each worker: samples a second over the recent window with work available.

In: the samples that each rank has trained and whether it holds leases. `master.data.stragglers` reads both from the
ledger every second. Out: a pace for each rank. Next: `job.stragglers.stragglers` and `job.stragglers.endgame` use it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST_S = 3.0  # a pace over less time is mostly noise, because a heartbeat takes a second


@dataclass(slots=True)
class WorkerPaces:
    """Paces over a sliding window, by rank. A rank without work keeps its last pace."""

    window_s: float = 20.0
    """Length of the window in seconds. A shorter window notices sooner; a longer window is less sensitive to a pause.
    """
    looks: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def look(self, trained: Mapping[int, int], busy: Iterable[int], at: float) -> None:
        """Record the progress of all ranks. Time without leases does not count as slowness."""
        working = set(busy)
        for rank in [rank for rank in self.looks if rank not in working]:
            del self.looks[rank]
        for rank in working:
            looks = self.looks.setdefault(rank, deque())
            looks.append((at, trained.get(rank, 0)))
            while len(looks) > 2 and looks[1][0] <= at - self.window_s:
                looks.popleft()
            (began, before), (now, samples) = looks[0], looks[-1]
            if now - began >= LEAST_S:
                self.last[rank] = (samples - before) / (now - began)

    def forget(self, rank: int) -> None:
        """Forget the pace of a rank, because its new incarnation may be on another machine."""
        self.looks.pop(rank, None)
        self.last.pop(rank, None)

    def judged(self) -> dict[int, float]:
        """Return the paces of ranks that worked for at least half a window, which is enough for a comparison."""
        return {
            rank: self.last[rank]
            for rank, looks in self.looks.items()
            if rank in self.last and looks[-1][0] - looks[0][0] >= self.window_s / 2
        }

    def known(self) -> dict[int, float]:
        """Return the latest pace of every rank that has one."""
        return dict(self.last)
