"""Virtual clock: runs actions in order of time, and actions of the same time in order of scheduling.

In: `at(time, act)`. Out: `run(until)` calls each action at its time. All of `sim.engine` takes the time from this
clock.
"""

import heapq
import itertools
from collections.abc import Callable

Act = Callable[[], None]


class Clock:
    """A heap of scheduled actions. Time never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Act]] = []

    def at(self, when: float, act: Act) -> None:
        """Schedule an action; a time in the past means now."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    def after(self, seconds: float, act: Act) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        """Advance the time to `until`, or until no action is left."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            self.events += 1
            act()
