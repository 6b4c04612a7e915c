"""Runs an adviser in its own thread and event loop, so that it cannot block the master's loop.

In: a factory of advisers (`brain.service.embedded`, `brain.service.client`, or another). Out: an `Adviser` for
`master.autoscale.loop`. A call that never returns keeps its thread until the process ends. The adviser gets no new
requests until that call returns.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from springtide import errors
from springtide.domain.plan.plan import Advice, Adviser
from springtide.domain.plan.view import JobView, PastJob

T = TypeVar("T")


class ThreadedAdviser:
    """An adviser that is created in its own thread on the first request."""

    def __init__(self, make: Callable[[], Adviser]) -> None:
        self._make = make
        self._made: Adviser | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy: asyncio.Future[object] | None = None

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        """Ask the adviser for advice. Fails if the adviser is still busy with the previous request."""
        return await self._do(lambda adviser: adviser.advise(view, epoch=epoch, now=now))

    async def conclude(self, past: PastJob) -> None:
        """Let the adviser record a finished job, after any request under way. The caller sets a timeout."""
        if self._busy is not None:
            await asyncio.wait([self._busy])
        await self._do(lambda adviser: adviser.conclude(past))

    async def close(self) -> None:
        """Close the adviser, if it was ever made."""
        if self._made is not None:
            await self._do(lambda adviser: adviser.close())
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _do(self, what: Callable[[Adviser], Awaitable[T]]) -> T:
        if self._busy is not None and not self._busy.done():
            raise errors.TemporaryError("it is at an earlier question still")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), name="springtide-adviser", daemon=True).start()

        async def do() -> T:
            if self._made is None:
                self._made = self._make()
            return await what(self._made)

        task = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(do(), self._loop))
        self._busy = task  # type: ignore[assignment]
        return await asyncio.shield(task)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()
