"""Wait for an expected condition instead of sleeping.

In: a condition. Out: its first true value, or AssertionError after a time. For a job, use `until` of
`springtide.testing.cluster` and similar functions.
"""

import asyncio
import inspect
import threading
import time

PATIENCE_S = 120.0
EVERY_S = 0.005


def until(true, what="it", *, within_s=PATIENCE_S, every_s=EVERY_S):
    """Wait for a condition that another thread or process brings about."""
    tick, deadline = threading.Event(), time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        tick.wait(every_s)
    return found


async def soon(true, what="it", *, within_s=PATIENCE_S, every_s=EVERY_S):
    """Wait for a condition, or an awaitable one, among coroutines."""
    deadline = time.monotonic() + within_s
    while not (found := await one if inspect.isawaitable(one := true()) else one):
        assert time.monotonic() < deadline, f"waited in vain for: {what}; last: {found!r}"
        await asyncio.sleep(every_s)
    return found
