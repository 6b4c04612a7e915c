"""Waiting for one thing unless another happens first. In: `platforms.agent.agent` and
`platforms.agent.master_keeper`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def unless(happens: asyncio.Event, work: Coroutine[Any, Any, Result], error: Callable[[], Exception]) -> Result:
    """What `work` returns; if the event comes first, the work is called off and the error raised."""
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
