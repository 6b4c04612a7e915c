"""Virtual time: events in order of their time, those of one moment in the order they were planned in.

In: `at(time, act)`. Out: `run(until)` calls each act at its time. Nothing else in `sim` knows what time it is.
"""

import heapq
import itertools
from collections.abc import Callable

Act = Callable[[], None]


class Clock:
    """A heap of acts. Time never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Act]] = []

    def at(self, when: float, act: Act) -> None:
        """Plan an act; what is planned for the past happens now."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    def after(self, seconds: float, act: Act) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        """Let time pass up to `until`, or until nothing is planned any more."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            self.events += 1
            act()
