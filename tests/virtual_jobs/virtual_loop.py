"""asyncio event loop in virtual time: sleeping jumps the clock to the next due event.

In: a coroutine. Out: its result; `loop.time()` is the virtual time. The loop runs the code of real processes, with
asyncio's own timeouts, sleeps and events. Work for a thread runs inline.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Stuck(Exception):
    """Deadlock: all tasks wait and no event is due."""


class _NoFiles:
    """Replacement for a selector; `select` advances the clock instead of waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is due any more, but the simulation is not over")
        self.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic event loop whose time is a number."""

    def __init__(self) -> None:
        super().__init__()
        self._files = _NoFiles()
        self._selector = self._files  # the base class waits through this attribute

    def time(self) -> float:
        return self._files.now

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Arguments]], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, then cancel the remaining tasks."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
