"""Measures the delay of the master's event loop, because a blocked loop looks like a dead master.

In: a task of `master.main`. Out: the longest delay in the recent window, for the job's status.
"""

import asyncio
from collections import deque
from collections.abc import Callable

EVERY_S = 0.02
WINDOW_S = 10.0


class LoopLag:
    """Measures loop delay: sleeps briefly again and again, and records how late each sleep ends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque()

    async def watch(self) -> None:
        """Measure forever."""
        while True:
            due = self._clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.note(self._clock() - due, at=self._clock())

    def note(self, late_s: float, *, at: float) -> None:
        """Record a delay. Only delays that can still become the maximum are kept."""
        while self._late and self._late[-1][1] <= late_s:
            self._late.pop()
        self._late.append((at, late_s))
        while self._late[0][0] < at - WINDOW_S:
            self._late.popleft()

    @property
    def longest_s(self) -> float:
        """Return the longest delay in the recent window."""
        return max(0.0, self._late[0][1]) if self._late else 0.0
