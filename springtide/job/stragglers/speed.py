"""Pure. Measures the pace of each worker: samples a second over the recent window with work available.

In: the samples that each rank has trained and whether it holds leases. `master.data.stragglers` reads both from the
ledger every second. Out: a pace for each rank. Next: `job.stragglers.stragglers` and `job.stragglers.endgame` use it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST_S = 3.0  # a pace over less than this is mostly noise: a heartbeat is a second


@dataclass(slots=True)
class WorkerPaces:
    """Paces over a sliding window, by rank. A rank without work keeps its last pace."""

    window_s: float = 20.0
    """Length of the window in seconds. A shorter window notices sooner; a longer window is less sensitive to a pause.
    """
    looks: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def look(self, trained: Mapping[int, int], busy: Iterable[int], at: float) -> None:
        """Take down how far everyone is; time without leases is nobody's slowness."""
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
        """A new life of this rank begins: it may be on another machine."""
        self.looks.pop(rank, None)
        self.last.pop(rank, None)

    def judged(self) -> dict[int, float]:
        """Paces of the ranks that were at work for at least half a window: enough to be compared with others."""
        return {
            rank: self.last[rank]
            for rank, looks in self.looks.items()
            if rank in self.last and looks[-1][0] - looks[0][0] >= self.window_s / 2
        }

    def known(self) -> dict[int, float]:
        """The latest pace of every rank that has one."""
        return dict(self.last)
