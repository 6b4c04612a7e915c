"""Waiting, in time during which this process ran.

A process that was stopped or suspended wakes with all deadlines passed and replies unread. `AwakeClock` leaves such
gaps out, so that an agent does not blame others for its own silence. Read it often.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def unless(happens: asyncio.Event, work: Coroutine[Any, Any, Result], error: Callable[[], Exception]) -> Result:
    """Return the result of `work`; if the event comes first, cancel it and raise `error`."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(happens.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise error()
        return working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.wait({working, waiting})


LOOK_S = 0.2  # between two readings while something is waited for
MOST_S = 0.5  # above LOOK_S, so that time passes at its own rate on a machine that is busy, too


class AwakeClock:
    """Seconds in which this process could hear others, since this clock was made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at, self._awake_s = clock(), 0.0

    def now(self) -> float:
        read_at = self._clock()
        self._awake_s += min(read_at - self._read_at, MOST_S)
        self._read_at = read_at
        return self._awake_s

    async def within(self, limit_s: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`; raise TimeoutError after `limit_s` seconds awake."""
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
