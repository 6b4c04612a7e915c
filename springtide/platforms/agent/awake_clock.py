"""Clock and timeouts that count only the time in which this process ran.

A stopped or suspended process wakes up with expired deadlines and unread replies. `AwakeClock` skips such gaps, so that
an agent does not blame other processes for its own silence. Read the clock often.
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


LOOK_S = 0.2  # interval of readings during a wait
MOST_S = 0.5  # above LOOK_S, so that the clock keeps its rate on a busy machine


class AwakeClock:
    """Seconds since creation in which this process could receive messages."""

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
