"""Time during which this process ran: what an agent measures the silence of others by.

In: a clock. Out: the same seconds, less those in which this process stood still (SIGSTOP, a paused container, a machine
that was suspended). A process that wakes finds all its deadlines passed and the answers of others unread, and must not
blame them. Read it often: a gap between two readings counts as `MOST_S` at most.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from springtide.platforms.agent.waiting import Result

LOOK_S = 0.2  # between two readings while something is waited for
MOST_S = 0.5  # above LOOK_S, so that time passes at its own rate on a machine that is busy, too


class AwakeClock:
    """Seconds in which this process could hear others, since this clock was made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at, self._awake_s = clock(), 0.0

    def now(self) -> float:
        """Seconds awake so far."""
        read_at = self._clock()
        self._awake_s += min(read_at - self._read_at, MOST_S)
        self._read_at = read_at
        return self._awake_s

    async def within(self, limit_s: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what `work` returns; call it off and raise TimeoutError after so many seconds awake."""
        deadline = self.now() + limit_s
        working = asyncio.create_task(work)
        try:
            while not working.done():
                if (left_s := deadline - self.now()) <= 0:
                    raise TimeoutError(f"nothing within {limit_s:g} s")
                await asyncio.wait({working}, timeout=min(left_s, LOOK_S))
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})
